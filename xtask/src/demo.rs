//! `demo`: the shortest way from a fresh checkout to a real report.

use std::path::PathBuf;
use std::process::Command;

use crate::error::{Error, Result};
use crate::nodes;
use crate::run::{elevated, run, which, workspace};
use crate::test;

pub fn demo() -> Result<()> {
    test::build(None)?;
    let node = node()?;
    let mut command = elevated(&test::binary())?;
    command
        .args(["watch", "--"])
        .arg(node)
        .arg(workspace().join("xtask/demo/demo.mjs"));
    run(&mut command)
}

/// The node of this machine; one from npm where there is none, or where `node` is a script that starts
/// another (version managers do that), which is a fine thing to watch but a slow one to show.
fn node() -> Result<PathBuf> {
    if let Some(node) = which("node") {
        let mut ask = Command::new(node);
        let path = ask.args(["-p", "process.execPath"]).output();
        if let Ok(output) = path {
            let path = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
            if output.status.success() && path.is_file() {
                return Ok(path);
            }
        }
    }
    let newest = nodes::MATRIX
        .last()
        .ok_or_else(|| Error::told("the Node matrix is empty"))?;
    nodes::fetch(newest)
}
