//! Keys that are read and checked, but have no effect in this version.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::problem::Position;

/// Sections and keys whose job comes with a later version. Those of ref rules are warned of where they are read, since
/// somebody may rely on them.
const LATER: [&str; 7] = ["http", "inventory", "erasure", "pulls", "metrics", "schedule", "policy.mode"];

/// The sections and keys of this file that have no effect yet, each where it stands first. A file that cannot be read
/// has none.
pub(super) fn keys_without_effect(text: &str) -> Vec<(String, Position)> {
    let Ok(file) = DeTable::parse(text) else { return Vec::new() };
    let mut found: Vec<(usize, &str)> =
        LATER.into_iter().filter_map(|key| Some((first(file.get_ref(), key)?, key))).collect();
    found.sort_unstable();
    found.into_iter().map(|(at, key)| (shown(key), Position::of(text, at))).collect()
}

/// Where a key stands first; a section by its header.
fn first(table: &DeTable<'_>, key: &str) -> Option<usize> {
    let (name, rest) = key.split_once('.').map_or((key, None), |(name, rest)| (name, Some(rest)));
    let (at, value) = table.get_key_value(name)?;
    match (rest, value.get_ref()) {
        (None, _) => Some(at.span().start),
        (Some(rest), DeValue::Table(inner)) => first(inner, rest),
        (Some(rest), DeValue::Array(items)) => {
            let tables = items.iter().map(Spanned::get_ref).filter_map(DeValue::as_table);
            tables.filter_map(|inner| first(inner, rest)).min()
        }
        _ => None,
    }
}

/// `[http]`, `[guard] max_ratio`.
fn shown(key: &str) -> String {
    match key.split_once('.') {
        Some((section, key)) => format!("[{section}] {key}"),
        None => format!("[{key}]"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Vec<String> {
        keys_without_effect(text).into_iter().map(|(key, at)| format!("{at} {key}")).collect()
    }

    #[test]
    fn keys_without_effect_are_told_where_they_stand() {
        assert_eq!(of("[expire]\nolder_than = \"5d\"\n[guard]\nmax_refs = 1"), [""; 0]);
        let text = "[guard]\nmax_refs = 1\nmax_ratio = 0.1\n[[policy]]\ntables = [\"a\"]\n[[policy]]\nmode = \"mark\"\n[http]\n";
        assert_eq!(of(text), ["7:1 [policy] mode", "8:2 [http]"]);
        assert_eq!(of("[guard\n"), [""; 0]);
    }

    #[test]
    fn they_are_keys_that_the_file_can_have() {
        // Without the `#` of keys that have no default.
        let shipped = include_str!("../../config/icewarden.toml");
        for key in LATER {
            let (section, name) = key.split_once('.').unwrap_or((key, ""));
            assert!(shipped.contains(&format!("[{section}]")), "{key}");
            assert!(name.is_empty() || shipped.contains(&format!("{name} = ")), "{key}");
        }
    }
}
