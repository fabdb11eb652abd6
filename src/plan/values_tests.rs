use super::*;
use crate::model::table::tests::empty_table;

/// Request, policy, property, override; value, source.
type Row = (Option<i64>, Option<i64>, Option<i64>, bool, i64, Source);

#[test]
fn the_most_direct_value_wins_unless_a_policy_would_keep_less_than_the_table_says() {
    let day = Age::days;
    let property = || Source::Property(MAX_SNAPSHOT_AGE.to_owned());
    let policy = || Source::Policy("db.*".to_owned());
    let rows: [Row; 9] = [
        (None, None, None, false, 5, Source::Config),
        (None, None, Some(9), false, 9, property()),
        (None, None, Some(2), false, 2, property()),
        (None, Some(7), Some(2), false, 7, policy()),
        (None, Some(1), Some(9), false, 9, property()),
        (None, Some(1), Some(9), true, 1, policy()),
        (None, Some(1), None, false, 1, policy()),
        (Some(3), Some(1), Some(9), false, 3, Source::Request),
        (None, None, Some(0), false, 1, Source::Floor),
    ];
    for (request, policy_age, property_age, override_table, value, source) in rows {
        let mut state = empty_table();
        if let Some(days) = property_age {
            state.properties.insert(MAX_SNAPSHOT_AGE.to_owned(), day(days).0.to_string());
        }
        let request = Request { older_than: request.map(day), ..Request::default() };
        let configured = Configured {
            policy_older_than: policy_age.map(|days| Sourced::new(day(days), policy())),
            policy_retain_last: None,
            override_table,
            older_than: day(5),
            retain_last: 1,
            floor: day(1),
            drop_grace: day(1),
            keep_fork_points: true,
            rules: RefRules::default(),
        };
        let values = resolve(&state, &Inputs { request, configured, now: Timestamp(0) }).unwrap();
        assert_eq!(values.older_than, Sourced::new(day(value), source));
    }
}

#[test]
fn a_property_that_is_no_number_is_an_error_with_its_name() {
    for name in [MAX_SNAPSHOT_AGE, MIN_SNAPSHOTS, MAX_REF_AGE] {
        let mut state = empty_table();
        state.properties.insert(name.to_owned(), "5 days".to_owned());
        let configured = Configured {
            policy_older_than: None,
            policy_retain_last: None,
            override_table: false,
            older_than: Age::days(5),
            retain_last: 1,
            floor: Age::hours(1),
            drop_grace: Age::days(1),
            keep_fork_points: true,
            rules: RefRules::default(),
        };
        let inputs = Inputs { request: Request::default(), configured, now: Timestamp(0) };
        let error = resolve(&state, &inputs).unwrap_err();
        assert_eq!(error, BadProperty { name, value: "5 days".to_owned() });
    }
}
