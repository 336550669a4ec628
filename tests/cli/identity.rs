//! Whose program it is: under sudo the caller's, and never run when it cannot be watched.

use crate::{Ran, perf_gate};
use perf_gate_tests::{binary, skip, skip_unless_root};
use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::PathBuf,
    process::Command,
};

const NOBODY: u32 = 65534;

/// A folder that everybody may write to, with a perf-gate that everybody may run.
fn open_place() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a temporary folder can be made");
    let everybody = fs::Permissions::from_mode(0o777);
    fs::set_permissions(dir.path(), everybody).expect("a mode");
    let copy = dir.path().join("perf-gate");
    fs::copy(binary(), &copy).expect("a copy");
    (dir, copy)
}

fn as_sudo(args: &[&str]) -> Command {
    let mut command = perf_gate(args);
    command
        .env("SUDO_UID", NOBODY.to_string())
        .env("SUDO_GID", NOBODY.to_string())
        .env("SUDO_USER", "nobody");
    command
}

fn ran(command: &mut Command) -> Ran {
    command.output().expect("perf-gate starts").into()
}

#[test]
fn without_rights_it_says_so_and_runs_nothing() {
    skip_unless_root!();
    let (dir, gate) = open_place();
    let mark = dir.path().join("ran");
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    command.arg(&gate).args(["watch", "--", "touch"]).arg(&mark);
    command.env("PERF_GATE_CACHE_DIR", dir.path().join("cache"));
    let Ok(output) = command.output() else {
        skip!("no setpriv here");
    };
    let ran = Ran::from(output);
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(
        ran.err.contains("root") && ran.err.contains("doctor"),
        "{ran:?}"
    );
    assert_eq!(ran.err.lines().count(), 1, "{ran:?}");
    assert!(!mark.exists());
}

#[test]
fn under_sudo_the_program_is_the_callers() {
    skip_unless_root!();
    let script = "id -u; id -g; id -Gn; echo $HOME $USER $LOGNAME; grep -E 'CapEff|CapPrm' /proc/self/status";
    let ran_as = ran(&mut as_sudo(&[
        "watch", "--quiet", "--", "sh", "-c", script,
    ]));
    let lines: Vec<_> = ran_as.out.lines().collect();
    assert_eq!(ran_as.code, 0, "{ran_as:?}");
    assert_eq!(lines[..2], ["65534", "65534"], "{ran_as:?}");
    assert!(
        lines[3].ends_with(" nobody nobody") && !lines[3].contains("root"),
        "{ran_as:?}"
    );
    assert!(
        lines[4..].iter().all(|l| l.ends_with("\t0000000000000000")),
        "{ran_as:?}"
    );

    let root = ran(&mut as_sudo(&[
        "watch",
        "--quiet",
        "--as-root",
        "--",
        "id",
        "-u",
    ]));
    assert_eq!((root.code, root.out.trim()), (0, "0"), "{root:?}");
}

#[test]
fn records_belong_to_the_caller() {
    skip_unless_root!();
    let (dir, _) = open_place();
    let (record, junit) = (dir.path().join("r.ndjson"), dir.path().join("r.xml"));
    let mut command = as_sudo(&["watch", "--quiet"]);
    command.arg("--ndjson").arg(&record);
    command.arg("--junit").arg(&junit).args(["--", "true"]);
    let ran = ran(&mut command);
    assert_eq!(ran.code, 0, "{ran:?}");
    for path in [record, junit] {
        let meta = fs::metadata(&path).expect("it was written");
        assert_eq!(
            (meta.uid(), meta.gid()),
            (NOBODY, NOBODY),
            "{}",
            path.display()
        );
    }
}

#[test]
fn a_caller_that_is_no_user_is_refused() {
    skip_unless_root!();
    for (uid, gid) in [
        ("abc", "1"),
        ("-1", "1"),
        ("4294967295", "1"),
        ("1", ""),
        ("987654", "1"),
    ] {
        let mut command = perf_gate(&["watch", "--", "true"]);
        command.env("SUDO_UID", uid).env("SUDO_GID", gid);
        let ran = ran(&mut command);
        assert_eq!(
            (ran.code, ran.err.lines().count()),
            (2, 1),
            "{uid}:{gid}: {ran:?}"
        );
        assert!(ran.err.contains("--as-root"), "{ran:?}");
    }
}
