//! What becomes of each file that only expired snapshots used: marked, or kept with a reason.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::roots::Place;
use crate::config::OutsideLocation;
use crate::model::{Candidate, Location, LocationRules, Root};

/// One decision per candidate.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CleanupPlan {
    /// To be marked, in the order of deletion.
    pub mark: Vec<Candidate>,
    /// To be left, with the reason.
    pub keep: Vec<(Candidate, KeptFile)>,
}

/// Why a file that nothing uses any more is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, JsonSchema, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeptFile {
    /// It lies outside the table's folders.
    Outside,
    /// It lies in another table's folder.
    InOtherTable,
    /// An operator keeps it.
    ByHand,
    /// The table names the same key under another authority, which may be the same object.
    OtherAuthority,
    /// No store can be asked for its key byte for byte, or readers disagree on which object it names.
    Unrepresentable,
}

impl KeptFile {
    /// In words.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Outside => "outside the table's location",
            Self::InOtherTable => "in another table's folder",
            Self::ByHand => "kept by hand",
            Self::OtherAuthority => "the same key is named under another authority",
            Self::Unrepresentable => "its key cannot be asked for exactly",
        }
    }
}

/// Decides for every candidate. `by_hand` holds canonical locations.
pub fn plan(
    candidates: Vec<Candidate>,
    place: &Place,
    by_hand: &BTreeSet<String>,
    outside: OutsideLocation,
    rules: &LocationRules,
) -> CleanupPlan {
    let mut plan = CleanupPlan::default();
    for candidate in candidates {
        let kept = match rules.parse(&candidate.location) {
            Ok(location) => kept(&location, place, by_hand, outside),
            Err(_) => Some(KeptFile::Unrepresentable),
        };
        match kept {
            None => plan.mark.push(candidate),
            Some(because) => plan.keep.push((candidate, because)),
        }
    }
    plan.mark.sort_unstable();
    plan.keep.sort_unstable();
    plan
}

/// Why this location must be left, if it must. Also asked again right before a delete.
pub fn kept(
    location: &Location,
    place: &Place,
    by_hand: &BTreeSet<String>,
    outside: OutsideLocation,
) -> Option<KeptFile> {
    if by_hand.contains(location.canonical()) {
        Some(KeptFile::ByHand)
    } else if Root::any_contains(&place.others, location) {
        Some(KeptFile::InOtherTable)
    } else if outside == OutsideLocation::Keep && !Root::any_contains(&place.roots, location) {
        Some(KeptFile::Outside)
    } else if location.is_ambiguous() || location.object_path().is_err() {
        Some(KeptFile::Unrepresentable)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::FileKind;

    #[test]
    fn each_candidate_has_one_decision_with_its_reason() {
        let rules = LocationRules::default();
        let root = |text: &str| rules.root(text).unwrap();
        let place = Place {
            roots: [root("s3://wh/db/t")].into(),
            others: [root("s3://wh/db/t/inner")].into(),
            ..Place::default()
        };
        let by_hand = BTreeSet::from(["s3://wh/db/t/data/hand".to_owned()]);
        for (location, keep_outside, delete_outside) in [
            ("s3a://wh/db/t/data/x%2F y", None, None),
            ("s3://wh/db/t2/data/x", Some(KeptFile::Outside), None),
            ("s3://wh/db/t/inner/data/x", Some(KeptFile::InOtherTable), Some(KeptFile::InOtherTable)),
            ("s3a://wh/db/t/data/hand", Some(KeptFile::ByHand), Some(KeptFile::ByHand)),
            ("s3://wh/db/t//data/x", Some(KeptFile::Unrepresentable), Some(KeptFile::Unrepresentable)),
            ("s3://wh/db/t/data/x?v=1", Some(KeptFile::Unrepresentable), Some(KeptFile::Unrepresentable)),
            ("s3://wh/db/t/../u/x", Some(KeptFile::Outside), Some(KeptFile::Unrepresentable)),
            ("data/x", Some(KeptFile::Unrepresentable), Some(KeptFile::Unrepresentable)),
        ] {
            for (outside, expected) in
                [(OutsideLocation::Keep, keep_outside), (OutsideLocation::Delete, delete_outside)]
            {
                let candidate =
                    Candidate { kind: FileKind::Data, location: location.into(), recorded_size: None, step: 0 };
                let plan = plan(vec![candidate.clone()], &place, &by_hand, outside, &rules);
                let wanted = match expected {
                    None => CleanupPlan { mark: vec![candidate], keep: vec![] },
                    Some(because) => CleanupPlan { mark: vec![], keep: vec![(candidate, because)] },
                };
                assert_eq!(plan, wanted, "{location} {outside:?}");
            }
        }
    }
}
