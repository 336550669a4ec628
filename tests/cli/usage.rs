//! Wrong usage: one line to standard error, 64, and the command has not run.

use crate::run;

#[test]
fn wrong_usage_is_one_line_and_64() {
    let dir = tempfile::tempdir().expect("a temporary folder can be made");
    let mark = dir.path().join("ran");
    let mark = mark.to_str().expect("a plain path");
    for (options, says) in [
        (&["--nonsense"][..], "--nonsense"),
        (&["--max-scavenges", "-1"], "negative"),
        (&["--max-scavenges", "1.5"], "whole number"),
        (
            &["--max-old-gen", "99999999999999999999999"],
            "--max-old-gen",
        ),
        (&["--max-external-kb", "NaN"], "number"),
        (&["--max-rss-kb", "-0.5"], "negative"),
        (&["--max-pause-ms", "inf"], "finite"),
        (&["--max-pause-ms", ""], "--max-pause-ms"),
        (&["--max-bytes", "5x"], "number"),
        (&["--max-bytes=-5"], "negative"),
        (
            &["--max-scavenges", "1", "--max-scavenges", "2"],
            "multiple times",
        ),
        (&["--quiet", "--verbose"], "cannot be used with"),
        (&["--prove", "--no-prove"], "cannot be used with"),
        (&["--ndjson", "-", "--junit", "-"], "cannot share"),
        (&["--max-scavnges", "1"], "--max-scavenges"),
        (
            &["--ndjson", "/no/such/folder/file"],
            "/no/such/folder/file",
        ),
    ] {
        let args = [&["watch"], options, &["--", "touch", mark]].concat();
        let ran = run(&args);
        assert_eq!(ran.code, 64, "{args:?}: {ran:?}");
        assert!(ran.out.is_empty(), "{args:?}: {ran:?}");
        assert_eq!(ran.err.lines().count(), 1, "{args:?}: {ran:?}");
        assert!(
            ran.err.starts_with("perf-gate: ") && ran.err.contains(says),
            "{args:?}: {ran:?}"
        );
        assert!(!std::path::Path::new(mark).exists(), "{args:?}");
    }
}

#[test]
fn without_a_command() {
    for args in [
        &["watch"][..],
        &["watch", "--"],
        &["watch", "--quiet"],
        &["wach", "--", "node"],
        &["doctor", "extra"],
    ] {
        let ran = run(args);
        assert_eq!(
            (ran.code, ran.err.lines().count()),
            (64, 1),
            "{args:?}: {ran:?}"
        );
    }
    // Nothing at all is answered with the help.
    let ran = run(&[]);
    assert_eq!(ran.code, 64);
    assert!(
        ran.err.contains("Usage:") || ran.out.contains("Usage:"),
        "{ran:?}"
    );
}
