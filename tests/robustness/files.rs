//! Where output goes wrong: full, closed, forbidden; and what perf-gate was not given.

use crate::support::{node, perf_gate, run, shell};
use std::{fs, path::Path};

/// The command must not have run when the record could not be opened.
#[test]
fn records_that_cannot_be_opened_stop_the_run_before_it_starts() {
    let Some(_) = node() else { return };
    let dir = tempfile::tempdir().expect("a temporary folder can be made");
    let mark = dir.path().join("ran");
    let inside = dir.path().join("no/such/folder");
    for option in ["--ndjson", "--junit"] {
        for path in [
            inside.as_path(),
            dir.path(),
            Path::new("/proc/version"),
            Path::new("/"),
        ] {
            let mut command = perf_gate(["watch", option]);
            command.arg(path).args(["--", "touch"]).arg(&mark);
            let ran = run(command);
            assert_eq!(
                (ran.code, ran.err.lines().count()),
                (64, 1),
                "{path:?}: {ran:?}"
            );
            assert!(!mark.exists(), "{path:?}");
        }
    }
}

#[test]
fn records_that_cannot_be_written_make_the_run_worthless() {
    let Some(node) = node() else { return };
    let dir = tempfile::tempdir().expect("a temporary folder can be made");
    let (kept, fifo) = (dir.path().join("kept"), dir.path().join("fifo"));
    fs::write(&kept, "before").expect("a file");
    let (kept_s, fifo_s) = (kept.display(), fifo.display());
    for script in [
        "\"$1\" watch --quiet --ndjson /dev/full -- true".to_owned(),
        "\"$1\" watch --quiet --junit /dev/full -- true".to_owned(),
        format!(
            "mkfifo {fifo_s}; (exec 3<{fifo_s}; sleep 0.1) & \"$1\" watch --quiet --ndjson {fifo_s} -- sleep 0.5"
        ),
        format!("ulimit -f 0; exec \"$1\" watch --quiet --ndjson {kept_s} -- true"),
    ] {
        let ran = run(shell(&script, &node));
        assert_eq!(
            (ran.code, ran.err.lines().count()),
            (2, 1),
            "{script}: {ran:?}"
        );
    }
    assert_eq!(fs::read_to_string(&kept).expect("it is there"), "before");
    let names: Vec<_> = fs::read_dir(dir.path())
        .expect("a folder")
        .filter_map(|e| Some(e.ok()?.file_name()))
        .collect();
    assert_eq!(names.len(), 2, "{names:?}");
}

#[test]
fn a_record_on_a_pipe_that_nobody_reads() {
    let Some(node) = node() else { return };
    let script = "{ \"$1\" watch --quiet --ndjson - -- sleep 0.3; echo code $? >&2; } | true";
    let ran = run(shell(script, &node));
    assert!(
        ran.err.ends_with("code 2\n") && ran.err.lines().count() == 2,
        "{ran:?}"
    );
}

#[test]
fn a_standard_error_that_takes_nothing() {
    let Some(node) = node() else { return };
    for (args, code) in [
        ("watch -- \"$2\" -e 'process.exit(3)'", 3),
        ("watch --verbose -- \"$2\" -e 'process.exit(3)'", 3),
        ("watch -- /no/such", 127),
        ("watch --ndjson /no/such/place -- true", 64),
        ("watch --nonsense", 64),
        ("doctor --node /no/such", 66),
    ] {
        for to in ["2>/dev/full", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"] {
            let ran = run(shell(&format!("\"$1\" {args} {to}"), &node));
            assert_eq!(ran.code, code, "{args} {to}: {ran:?}");
        }
    }
}

#[test]
fn much_output_passes_through_untouched() {
    let Some(node) = node() else { return };
    let script = "\"$1\" watch --quiet -- \"$2\" -e '
        const b = Buffer.alloc(1 << 20, 65); for (let i = 0; i < 100; i++) fs.writeSync(1, b)' | wc -c";
    let ran = run(shell(script, &node));
    assert_eq!(ran.out.trim(), (100 << 20).to_string(), "{}", ran.err);
}

#[test]
fn few_descriptors() {
    let Some(node) = node() else { return };
    // As many as we may have are taken, and the program still has as many as it was given.
    let script =
        "ulimit -Sn 20; exec \"$1\" watch --quiet -- sh -c 'ulimit -Sn; exec \"$0\" -e 0' \"$2\"";
    let ran = run(shell(script, &node));
    assert!(ran.code != 2 && ran.out == "20\n", "{ran:?}");
    let ran = run(shell(
        "ulimit -n 12; exec \"$1\" watch -- touch /no/such/place",
        &node,
    ));
    assert_eq!((ran.code, ran.err.lines().count()), (2, 1), "{ran:?}");
    assert!(ran.err.contains("ulimit -n"), "{ran:?}");
}

#[test]
fn a_working_directory_that_is_gone() {
    let Some(node) = node() else { return };
    let dir = tempfile::tempdir().expect("a temporary folder can be made");
    let script = format!(
        "cd {} && rmdir \"$PWD\" && exec \"$1\" watch --quiet -- true",
        dir.path().display()
    );
    assert_eq!(run(shell(&script, &node)).code, 0);
}
