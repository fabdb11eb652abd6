//! Five-field cron lines, checked field by field so that the message names the field that is wrong.

use croner::parser::{CronParser, Seconds, Year};

/// The fields with their ranges, in order; Sunday is 0 and 7.
const FIELDS: [(&str, u32, u32); 5] =
    [("minute", 0, 59), ("hour", 0, 23), ("day of month", 1, 31), ("month", 1, 12), ("day of week", 0, 7)];

/// Says what is wrong with a line.
pub(super) fn check(line: &str) -> Result<(), String> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    if fields.len() != FIELDS.len() {
        let names: Vec<&str> = FIELDS.iter().map(|(name, ..)| *name).collect();
        return Err(format!("{} fields where 5 belong: {}", fields.len(), names.join(", ")));
    }
    for (field, (name, low, high)) in fields.iter().zip(FIELDS) {
        for part in field.split(',') {
            check_part(part, name, low, high)?;
        }
    }
    let parser = CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed).build();
    parser.parse(line).map(drop).map_err(|error| error.to_string().trim_end_matches('.').to_owned())
}

/// Checks the numbers of `5`, `1-5`, `*/10` and `1-20/5`; names of days and months are left to the parser.
fn check_part(part: &str, name: &str, low: u32, high: u32) -> Result<(), String> {
    if part.is_empty() {
        return Err(format!("{name} has an empty part"));
    }
    let (range, step) = part.split_once('/').map_or((part, None), |(range, step)| (range, Some(step)));
    if let Some(step) = step
        && !step.parse::<u32>().is_ok_and(|step| (1..=high).contains(&step))
    {
        return Err(format!("{name} step {step} is not in 1-{high}"));
    }
    let mut numbers = Vec::new();
    for number in range.split('-').filter(|text| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())) {
        match number.parse::<u32>() {
            Ok(number) if (low..=high).contains(&number) => numbers.push(number),
            _ => return Err(format!("{name} {number} is not in {low}-{high}")),
        }
    }
    match numbers[..] {
        [from, to] if from > to => Err(format!("{name} range {from}-{to} runs backwards")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_lines_pass_and_bad_ones_name_the_field() {
        for good in ["0 3 * * *", "*/15 0-6,22 1 1-12 MON-FRI", "0 0 * JAN 0", "5 4 * * 7", "0  3 * * sun", "0 0 L * *"]
        {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for (bad, why) in [
            ("0 25 * * *", "hour 25 is not in 0-23"),
            ("60 1 * * *", "minute 60 is not in 0-59"),
            ("0 1 0 * *", "day of month 0 is not in 1-31"),
            ("0 1 1 13 *", "month 13 is not in 1-12"),
            ("0 1 * * 8", "day of week 8 is not in 0-7"),
            ("*/0 1 * * *", "minute step 0 is not in 1-59"),
            ("0 1-99 * * *", "hour 99 is not in 0-23"),
            ("0 9-5 * * *", "hour range 9-5 runs backwards"),
            ("99999999999 1 * * *", "minute 99999999999 is not in 0-59"),
            ("0 1 * * ,", "day of week has an empty part"),
            ("0 3 * *", "4 fields where 5 belong: minute, hour, day of month, month, day of week"),
            ("0 0 3 * * *", "6 fields where 5 belong: minute, hour, day of month, month, day of week"),
            ("@daily", "1 fields where 5 belong: minute, hour, day of month, month, day of week"),
        ] {
            assert_eq!(check(bad), Err(why.to_owned()), "{bad}");
        }
        for bad in ["0 x * * *", "0 1 * * MOONDAY", "- - - - -", "é 1 * * *"] {
            assert!(check(bad).is_err(), "{bad}");
        }
    }
}
