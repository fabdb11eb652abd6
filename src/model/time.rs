//! Points in time and spans of it, in milliseconds as Iceberg keeps them.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use chrono::{DateTime, SecondsFormat, Utc};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// Milliseconds since the epoch, UTC.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, JsonSchema, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// The time from here back to `earlier`; negative where `earlier` is in the future.
    pub fn since(self, earlier: Self) -> Age {
        Age(self.0.saturating_sub(earlier.0))
    }

    /// This time, `age` earlier.
    #[must_use]
    pub fn minus(self, age: Age) -> Self {
        Self(self.0.saturating_sub(age.0))
    }

    /// This time, `age` later.
    #[must_use]
    pub fn plus(self, age: Age) -> Self {
        Self(self.0.saturating_add(age.0))
    }

    /// `2026-11-30 21:04:07Z`; a time that no calendar holds is shown as its number.
    pub fn show(self) -> String {
        DateTime::<Utc>::from_timestamp_millis(self.0)
            .map_or_else(|| format!("{} ms", self.0), |t| t.format("%Y-%m-%d %H:%M:%SZ").to_string())
    }
}

/// RFC 3339 with milliseconds.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match DateTime::<Utc>::from_timestamp_millis(self.0) {
            Some(time) => f.write_str(&time.to_rfc3339_opts(SecondsFormat::Millis, true)),
            None => write!(f, "{} ms", self.0),
        }
    }
}

impl FromStr for Timestamp {
    type Err = BadTime;

    /// Reads RFC 3339.
    fn from_str(text: &str) -> Result<Self, BadTime> {
        DateTime::parse_from_rfc3339(text)
            .map(|time| Self(time.timestamp_millis()))
            .map_err(|_| BadTime { text: text.to_owned(), expected: "an RFC 3339 time such as 2026-11-30T21:04:07Z" })
    }
}

impl From<DateTime<Utc>> for Timestamp {
    fn from(time: DateTime<Utc>) -> Self {
        Self(time.timestamp_millis())
    }
}

/// A span of time in milliseconds; negative spans come from clocks that differ.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Age(pub i64);

impl Age {
    const UNITS: [(&'static str, i64); 6] =
        [("w", 604_800_000), ("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

    /// No time at all.
    pub const ZERO: Self = Self(0);

    /// This many hours.
    pub const fn hours(hours: i64) -> Self {
        Self(hours * 3_600_000)
    }

    /// This many days.
    pub const fn days(days: i64) -> Self {
        Self(days * 86_400_000)
    }

    /// As people say it: the two largest units, `9d`, `2d 4h`, `35m`.
    pub fn show(self) -> String {
        if self.0 < 0 {
            return format!("in {}", Self(-self.0).show());
        }
        let mut rest = self.0;
        let mut parts = Vec::new();
        for (unit, ms) in [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)] {
            let count = rest / ms;
            rest %= ms;
            if count > 0 {
                parts.push(format!("{count}{unit}"));
            }
            if !parts.is_empty() && (parts.len() == 2 || count == 0) {
                break;
            }
        }
        if parts.is_empty() { "0s".to_owned() } else { parts.join(" ") }
    }
}

/// Exact, and read back by `from_str`: the largest unit that divides it.
impl fmt::Display for Age {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = Self::UNITS.iter().skip(1).find(|(_, ms)| self.0 != 0 && self.0 % ms == 0);
        let text = match unit {
            Some((name, ms)) => format!("{}{name}", self.0 / ms),
            None => "0s".to_owned(),
        };
        f.pad(&text)
    }
}

impl FromStr for Age {
    type Err = BadTime;

    /// Reads `5d`, `36h`, `1d12h`, `0s`; units `w d h m s ms`.
    fn from_str(text: &str) -> Result<Self, BadTime> {
        let bad = || BadTime {
            text: text.to_owned(),
            expected: "a duration such as 5d, 36h or 30m (units w, d, h, m, s, ms)",
        };
        let mut rest = text.trim();
        if rest.is_empty() {
            return Err(bad());
        }
        let mut total = 0_i64;
        while !rest.is_empty() {
            let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(bad)?;
            let count: i64 = rest[..digits].parse().map_err(|_| bad())?;
            rest = &rest[digits..];
            let letters = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
            let (_, ms) = Self::UNITS.iter().find(|(name, _)| *name == &rest[..letters]).ok_or_else(bad)?;
            total = count.checked_mul(*ms).and_then(|part| total.checked_add(part)).ok_or_else(bad)?;
            rest = rest[letters..].trim_start();
        }
        Ok(Self(total))
    }
}

impl JsonSchema for Age {
    fn schema_name() -> Cow<'static, str> {
        "Age".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A span of time, exact: `5d`, `36h`, `250ms`",
            "type": "string",
            "pattern": "^-?[0-9]+(w|d|h|m|s|ms)$",
        })
    }
}

impl Serialize for Age {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Age {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// A time or duration that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {expected}")]
pub struct BadTime {
    text: String,
    expected: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_exactly_and_shown_as_people_say_them() {
        for (text, ms, shown, exact) in [
            ("5d", 432_000_000, "5d", "5d"),
            ("36h", 129_600_000, "1d 12h", "36h"),
            ("1d12h", 129_600_000, "1d 12h", "36h"),
            ("1d 0h 5m", 86_700_000, "1d", "1445m"),
            ("0s", 0, "0s", "0s"),
            ("250ms", 250, "0s", "250ms"),
            ("2w", 1_209_600_000, "14d", "14d"),
        ] {
            let age: Age = text.parse().unwrap();
            assert_eq!((age.0, age.show().as_str(), age.to_string().as_str()), (ms, shown, exact), "{text}");
            assert_eq!(age.to_string().parse::<Age>().unwrap(), age);
        }
        for bad in ["", "5", "d", "5 days", "-1d", "1.5d", "5D", "99999999999999999999d", "9999999999999w"] {
            assert!(bad.parse::<Age>().is_err(), "{bad}");
        }
        assert_eq!(Age(-7_200_000).show(), "in 2h");
    }

    #[test]
    fn times_outside_the_calendar_are_shown_as_numbers() {
        assert_eq!(Timestamp(i64::MAX).to_string(), format!("{} ms", i64::MAX));
        assert_eq!("2026-01-31T00:00:00Z".parse::<Timestamp>().unwrap().show(), "2026-01-31 00:00:00Z");
    }
}
