//! `hold`: stops commits and deletes before the next request.

use serde_json::json;

use super::{HoldAction, HoldScopeArguments, failed, print};
use crate::model::TableName;
use crate::run::{Lake, RunError};
use crate::state::{Hold, HoldScope};

/// Does what was asked for.
pub(super) async fn command(lake: &Lake, action: HoldAction, json: bool) -> Result<u8, RunError> {
    match action {
        HoldAction::List => {
            let holds = lake.hands.state.holds().await.map_err(failed)?;
            if json {
                holds.iter().for_each(print::json);
            } else if holds.is_empty() {
                print::line("no holds");
            } else {
                for hold in holds {
                    print::line(format!(
                        "{}   by {} since {}: {}",
                        shown(&hold.scope),
                        hold.by,
                        hold.at.show(),
                        hold.reason
                    ));
                }
            }
        }
        HoldAction::Set { scope, reason } => {
            let hold = Hold { scope: of(lake, scope)?, by: super::actor(), reason, at: lake.hands.clock.now() };
            lake.hands.plans.hold(&lake.hands.state, &hold).await.map_err(failed)?;
            let detail = json!({ "scope": hold.scope, "reason": hold.reason });
            super::audit(lake, "hold", table_of(&hold.scope), detail).await?;
            print::line(format!(
                "held: {}; nothing of it is committed or deleted until it is released",
                shown(&hold.scope)
            ));
        }
        HoldAction::Release { scope } => {
            let scope = of(lake, scope)?;
            if !lake.hands.plans.release_hold(&lake.hands.state, &scope).await.map_err(failed)? {
                return Err(RunError::Rejected(format!("there is no hold on {}", shown(&scope))));
            }
            super::audit(lake, "release", table_of(&scope), json!({ "scope": scope })).await?;
            print::line(format!("released: {}", shown(&scope)));
        }
    }
    Ok(0)
}

fn of(lake: &Lake, scope: HoldScopeArguments) -> Result<HoldScope, RunError> {
    if let Some(catalog) = scope.catalog {
        if lake.catalog(&catalog).is_none() {
            return Err(RunError::Rejected(format!("no configured catalog is called {catalog:?}")));
        }
        return Ok(HoldScope::Catalog(catalog));
    }
    let Some(text) = scope.table else { return Ok(HoldScope::All) };
    let parts: Vec<&str> = text.split('.').collect();
    match parts.as_slice() {
        [catalog, namespace @ .., name] if !namespace.is_empty() && lake.catalog(catalog).is_some() => {
            Ok(HoldScope::Table(TableName {
                catalog: (*catalog).to_owned(),
                namespace: namespace.iter().map(|level| (*level).to_owned()).collect(),
                name: (*name).to_owned(),
            }))
        }
        _ => Err(RunError::Rejected(format!("{text:?} is no catalog.namespace.table of a configured catalog"))),
    }
}

fn table_of(scope: &HoldScope) -> Option<TableName> {
    match scope {
        HoldScope::Table(table) => Some(table.clone()),
        HoldScope::All | HoldScope::Catalog(_) => None,
    }
}

fn shown(scope: &HoldScope) -> String {
    match scope {
        HoldScope::All => "everything".to_owned(),
        HoldScope::Catalog(name) => format!("catalog {name}"),
        HoldScope::Table(table) => table.full(),
    }
}
