//! `demo`: makes a lake, cleans it, reads it back.

use std::path::Path;

use super::print;

/// Runs the demo.
pub(super) async fn command(folder: &Path, _fresh: bool) -> u8 {
    print::error(&format!("{}: not yet", folder.display()));
    1
}
