//! Help and version, word for word. `PERF_GATE_BLESS=1` writes what there is now.

use crate::{perf_gate, run};
use perf_gate_tests::fixture;
use std::fs;

#[test]
fn help_is_what_it_was() {
    for (name, args) in [
        ("help", &["--help"][..]),
        ("help-watch", &["watch", "--help"]),
        ("help-doctor", &["doctor", "--help"]),
    ] {
        let mut command = perf_gate(args);
        // The width is the terminal's, and there is none.
        command.env("COLUMNS", "100").env("TERM", "dumb");
        let output = command.output().expect("perf-gate starts");
        assert!(
            output.status.success() && output.stderr.is_empty(),
            "{args:?}"
        );
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let path = fixture(&format!("robust/{name}.txt"));
        if std::env::var_os("PERF_GATE_BLESS").is_some() {
            fs::write(&path, &text).expect("the tree can be written to");
        }
        let golden = fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(text, golden, "{args:?}; PERF_GATE_BLESS=1 accepts it");
    }
}

#[test]
fn the_version_names_the_object() {
    let ran = run(&["--version"]);
    let lines: Vec<_> = ran.out.lines().collect();
    assert_eq!((ran.code, lines.len()), (0, 3), "{ran:?}");
    assert!(lines[0].starts_with("perf-gate "));
    let hash = lines[1]
        .strip_prefix("eBPF object sha256 ")
        .expect("a hash");
    assert!(
        hash.len() == 64 && hash.bytes().all(|b| b.is_ascii_hexdigit()),
        "{hash}"
    );
    assert!(
        lines[2].starts_with("made by ") && lines[2].len() > 10,
        "{ran:?}"
    );
}
