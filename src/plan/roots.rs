//! Whether a table's folders are its alone (safety rule 6).

use std::collections::{BTreeMap, BTreeSet};

use uuid::Uuid;

use crate::model::{Root, TableName, TableRoots};

/// Where a table may delete, and whose references count beside its own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Place {
    /// Its folders.
    pub roots: BTreeSet<Root>,
    /// Folders of other tables that do not lie above its own: nothing in them is touched, be they nested in its
    /// folders or elsewhere.
    pub others: BTreeSet<Root>,
    /// Tables whose references count as referenced: an outer table, or one that an override names.
    pub neighbours: BTreeSet<TableName>,
}

/// Why a table's folders are not its alone. The table is skipped.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Shared {
    /// It cannot be told from a copy of itself.
    #[error(
        "its metadata has no table-uuid, so it cannot be told from a copy; upgrade it to format 2, which gives it one"
    )]
    NoUuid,
    /// Another catalogued table is the same table.
    #[error("{other} has the same table-uuid {uuid}: the same files under two names (policy `exclusive` overrides)")]
    Twin {
        /// The other name.
        other: String,
        /// Of both.
        uuid: Uuid,
    },
    /// Another catalogued table writes into the same folder.
    #[error("{other} has the same root {root} (policy `exclusive` overrides)")]
    SameRoot {
        /// The other table.
        other: String,
        /// Of both.
        root: Root,
    },
    /// A metadata file of a table that no catalog tells of lies in its folder.
    #[error("{file} is of another table, {uuid}, so both may have files there (policy `exclusive` overrides)")]
    ForeignMetadata {
        /// Which file.
        file: String,
        /// Whose.
        uuid: Uuid,
    },
    /// A metadata file in its folder cannot be understood, and a catalogued table cannot be loaded: it may be that one's.
    #[error("{file} is not understood, and may be of {table}, which cannot be loaded")]
    UnknownMetadata {
        /// Which file.
        file: String,
        /// The table that cannot be loaded.
        table: String,
    },
}

/// What this table may touch among all catalogued tables. `exclusive` holds the uuids of tables that an
/// operator declared to be no longer there in truth; their references still count.
pub fn place(this: &TableRoots, all: &[TableRoots], exclusive: &BTreeSet<Uuid>) -> Result<Place, Shared> {
    let uuid = this.uuid.ok_or(Shared::NoUuid)?;
    let mut place = Place { roots: this.roots.clone(), ..Place::default() };
    for other in all.iter().filter(|other| other.table != this.table) {
        let is_overridden = other.uuid.is_some_and(|uuid| exclusive.contains(&uuid));
        if other.uuid == Some(uuid) {
            if !is_overridden {
                return Err(Shared::Twin { other: other.table.full(), uuid });
            }
            place.neighbours.insert(other.table.clone());
        }
        if let Some(root) = this.roots.intersection(&other.roots).next() {
            if !is_overridden {
                return Err(Shared::SameRoot { other: other.table.full(), root: root.clone() });
            }
            place.neighbours.insert(other.table.clone());
        }
        for theirs in other.roots.difference(&this.roots) {
            if this.roots.iter().any(|ours| theirs.covers(ours)) {
                place.neighbours.insert(other.table.clone());
            } else {
                place.others.insert(theirs.clone());
            }
        }
    }
    Ok(place)
}

/// Which of a table's folders hold its files alone, so that what lies there unreferenced may be an orphan.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Exclusive {
    /// Those that do; none lies in another.
    pub roots: BTreeSet<Root>,
    /// Those that do not, or cannot be known to: they are left out.
    pub left_out: BTreeMap<Root, NotExclusive>,
}

/// Why a table's folder may hold other things than its files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum NotExclusive {
    /// A whole bucket, or the whole file system.
    #[error("is a whole bucket")]
    Bucket,
    /// The warehouse of a catalog, or a folder above it.
    #[error("holds the whole warehouse")]
    Warehouse,
    /// The folder of a namespace, or one above the table's own location.
    #[error("is the folder of a namespace")]
    Namespace,
    /// The object-store layout puts files of many tables there, each by the hash of its name.
    #[error("may hold files of many tables, by the hashes of their names")]
    Hashed,
    /// It holds the folder of another table.
    #[error("holds the folder of another table")]
    HoldsAnother,
}

/// Sorts a table's folders into those that the orphan job may look at and those that it must leave out (safety rule
/// 6). `shared` holds the folders of warehouses and namespaces, each with what it is. The table's own location may
/// hold other tables, whose folders are left out of it; a data or metadata path may not.
pub fn exclusive(place: &Place, location: &Root, shared: &BTreeMap<Root, NotExclusive>) -> Exclusive {
    let why = |root: &Root| {
        let is_above = |(of, what): (&Root, &NotExclusive)| {
            let holds = if *what == NotExclusive::Warehouse { root.covers(of) } else { root == of };
            holds.then_some(*what)
        };
        if root.is_whole_store() {
            return Some(NotExclusive::Bucket);
        }
        let warehouse = shared.iter().filter(|(_, what)| **what == NotExclusive::Warehouse).find_map(is_above);
        if root == location || warehouse.is_some() {
            return warehouse;
        }
        if root.covers(location) {
            return Some(NotExclusive::Namespace);
        }
        let namespace = shared.iter().find_map(is_above);
        namespace.or_else(|| place.others.iter().any(|other| root.covers(other)).then_some(NotExclusive::HoldsAnother))
    };
    let mut exclusive = Exclusive::default();
    for root in &place.roots {
        match why(root) {
            Some(why) => _ = exclusive.left_out.insert(root.clone(), why),
            None => _ = exclusive.roots.insert(root.clone()),
        }
    }
    let outermost = |root: &Root| !exclusive.roots.iter().any(|other| other != root && other.covers(root));
    exclusive.roots = exclusive.roots.iter().filter(|root| outermost(root)).cloned().collect();
    exclusive
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::LocationRules;

    #[test]
    fn a_folder_that_others_may_use_is_left_out_and_the_location_is_not() {
        let root = |text: &str| rules().root(text).unwrap();
        let shared = [(root("s3://wh"), NotExclusive::Warehouse), (root("s3://wh/db"), NotExclusive::Namespace)];
        let at = "s3://wh/db/t";
        for (roots, others, left_out) in [
            (vec![at], vec![], vec![]),
            (vec![at, "s3://data/t"], vec![], vec![]),
            (vec![at, "s3://wh/db/t/inner-data"], vec![], vec![]),
            (vec![at], vec!["s3://wh/db/t/inner"], vec![]),
            (vec![at, "s3://wh"], vec![], vec![("s3://wh/", NotExclusive::Bucket)]),
            (vec![at, "s3://wh/db"], vec![], vec![("s3://wh/db/", NotExclusive::Namespace)]),
            (vec![at, "s3://data/u"], vec!["s3://data/u/v"], vec![("s3://data/u/", NotExclusive::HoldsAnother)]),
            (vec![at, "s3://data"], vec![], vec![("s3://data/", NotExclusive::Bucket)]),
        ] {
            let place = Place {
                roots: roots.iter().map(|text| root(text)).collect(),
                others: others.iter().map(|text| root(text)).collect(),
                ..Place::default()
            };
            let found = exclusive(&place, &root(at), &shared.clone().into());
            let told: Vec<_> = found.left_out.iter().map(|(root, why)| (root.as_str(), *why)).collect();
            assert_eq!(told, left_out, "{roots:?} {others:?}");
            assert!(found.roots.contains(&root(at)), "{roots:?}");
        }
        // The warehouse itself as a table's location.
        let place = Place { roots: [root("s3://b/wh")].into(), ..Place::default() };
        let shared = [(root("s3://b/wh"), NotExclusive::Warehouse)].into();
        assert_eq!(exclusive(&place, &root("s3://b/wh"), &shared).roots, BTreeSet::new());
    }

    fn rules() -> LocationRules {
        LocationRules::default()
    }

    fn table(name: &str, uuid: u128, roots: &[&str]) -> TableRoots {
        TableRoots {
            table: TableName { catalog: "c".into(), namespace: vec!["db".into()], name: name.into() },
            metadata_location: String::new(),
            uuid: (uuid > 0).then(|| Uuid::from_u128(uuid)),
            roots: roots.iter().map(|root| rules().root(root).unwrap()).collect(),
        }
    }

    fn texts(roots: &BTreeSet<Root>) -> Vec<&str> {
        roots.iter().map(Root::as_str).collect()
    }

    #[test]
    fn twins_and_equal_roots_are_shared_unless_an_override_names_them() {
        let this = table("t", 1, &["s3://wh/t", "s3://data/t"]);
        let twin = table("copy", 1, &["s3://wh/copy"]);
        let same = table("same", 2, &["s3a://data//t/"]);
        let none = BTreeSet::new();
        assert!(matches!(place(&this, &[this.clone(), twin.clone()], &none), Err(Shared::Twin { .. })));
        assert!(matches!(place(&this, std::slice::from_ref(&same), &none), Err(Shared::SameRoot { .. })));
        assert_eq!(place(&table("t", 0, &["s3://wh/t"]), &[], &none), Err(Shared::NoUuid));
        let exclusive = [1, 2].map(Uuid::from_u128).into();
        let place = place(&this, &[twin.clone(), same.clone()], &exclusive).unwrap();
        assert_eq!(place.neighbours, [twin.table, same.table].into());
    }

    #[test]
    fn a_nested_root_is_left_out_of_the_outer_and_the_outer_counts_for_the_inner() {
        let outer = table("outer", 1, &["s3://wh/db"]);
        let inner = table("inner", 2, &["s3://wh/db/inner"]);
        let sibling = table("sibling", 3, &["s3://wh/db2"]);
        let all = [outer.clone(), inner.clone(), sibling.clone()];
        let of = |this: &TableRoots| place(this, &all, &BTreeSet::new()).unwrap();
        let (inner_root, outer_root, sibling_root) = ("s3://wh/db/inner/", "s3://wh/db/", "s3://wh/db2/");
        assert_eq!(
            (texts(&of(&outer).others), of(&outer).neighbours),
            (vec![inner_root, sibling_root], BTreeSet::new())
        );
        assert_eq!(
            (texts(&of(&inner).others), of(&inner).neighbours),
            (vec![sibling_root], [outer.table.clone()].into())
        );
        assert_eq!(
            (texts(&of(&sibling).others), of(&sibling).neighbours),
            (vec![outer_root, inner_root], BTreeSet::new())
        );
    }
}
