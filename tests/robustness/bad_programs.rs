//! Files that are no node, or a damaged one, as the command, below it, and in the doctor's hands.

use crate::support::{Ran, node, perf_gate, run};
use perf_gate_tests::Node;
use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

/// Name, content, mode.
fn make(dir: &Path, node: &Node) -> Vec<(&'static str, PathBuf)> {
    let whole = fs::read(&node.path).expect("node can be read");
    let word = |at: usize| u64::from_le_bytes(whole[at..at + 8].try_into().expect("8 bytes"));
    let sections = word(0x28) as usize;
    let mut no_table = whole.clone();
    no_table[0x28..0x30].copy_from_slice(&u64::MAX.to_le_bytes());
    let mut odd_table = whole.clone();
    // A fixed stream of odd bytes.
    let mut x = 1u32;
    for byte in &mut odd_table[sections..sections + 64 * 20] {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        if x >> 30 == 0 {
            *byte = (x >> 8) as u8;
        }
    }
    let mut narrow = whole[..4096].to_vec();
    narrow[4] = 1;
    let files = [
        ("empty", Vec::new()),
        ("text", b"exit 7\n".to_vec()),
        ("orphan", b"#!/no/such/interpreter\n".to_vec()),
        ("cut", whole[..4096].to_vec()),
        ("half", whole[..whole.len() / 2].to_vec()),
        ("narrow", narrow),
        ("magic", b"\x7fELF".to_vec()),
        ("no_table", no_table),
        ("odd_table", odd_table),
    ];
    files
        .into_iter()
        .map(|(name, bytes)| {
            let path = dir.join(name);
            fs::write(&path, bytes).expect("a file");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("a mode");
            (name, path)
        })
        .collect()
}

fn one_line(ran: &Ran) {
    assert_eq!(ran.err.lines().count(), 1, "{}", ran.err);
    assert!(
        ran.err.starts_with("perf-gate: ") && ran.out.is_empty(),
        "{ran:?}"
    );
}

#[test]
fn as_the_command() {
    let Some(node) = node() else { return };
    let dir = tempfile::tempdir().expect("a temporary folder can be made");
    for (name, path) in make(dir.path(), &node) {
        let mut command = perf_gate(["watch", "--quiet", "--"]);
        command.arg(&path).args(["-e", "0"]);
        let ran = run(command);
        match name {
            // The kernel finds out in the middle of the exec, and kills.
            "cut" | "half" | "narrow" => assert!(ran.code >= 126, "{name}: {ran:?}"),
            "no_table" | "odd_table" => assert_eq!(ran.code, 0, "{name}: {ran:?}"),
            _ => {
                assert_eq!(ran.code, 126, "{name}: {ran:?}");
                one_line(&ran);
            }
        }
    }
    for (command, code) in [
        (dir.path().to_path_buf(), 126),
        (dir.path().join("nowhere"), 127),
        (dir.path().join("text/below"), 127),
        (PathBuf::new(), 127),
        ("a\nb\u{1b}[31m".into(), 127),
    ] {
        let mut watch = perf_gate(["watch", "--"]);
        let ran = run({
            watch.arg(&command);
            watch
        });
        assert_eq!(ran.code, code, "{ran:?}");
        one_line(&ran);
        assert!(!ran.err.contains('\u{1b}'));
    }
}

#[test]
fn below_the_command() {
    let Some(node) = node() else { return };
    let dir = tempfile::tempdir().expect("a temporary folder can be made");
    for (name, path) in make(dir.path(), &node) {
        let mut command = perf_gate(["watch", "--quiet", "--no-color", "--", "sh", "-c"]);
        command.args(["\"$0\" -e 0; exit 5"]).arg(&path);
        let ran = run(command);
        assert_eq!(ran.code, 5, "{name}: {ran:?}");
        assert!(!ran.err.contains("panicked"), "{name}: {}", ran.err);
    }
    // A program that could be a node and cannot be read is a doubt: no budget holds.
    let mut command = perf_gate([
        "watch",
        "--quiet",
        "--max-scavenges",
        "999",
        "--",
        "sh",
        "-c",
    ]);
    command.args(["\"$0\" -e 0; \"$1\" -e 0"]);
    command.arg(dir.path().join("no_table")).arg(&node.path);
    let ran = run(command);
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.err.contains("no_table"), "{}", ran.err);
}

#[test]
fn in_the_doctors_hands() {
    let Some(node) = node() else { return };
    let dir = tempfile::tempdir().expect("a temporary folder can be made");
    for (name, path) in make(dir.path(), &node) {
        let mut command = perf_gate(["doctor", "--node"]);
        command.arg(&path);
        let ran = run(command);
        if name == "odd_table" {
            assert!(matches!(ran.code, 0 | 2 | 66), "{name}: {ran:?}");
        } else {
            assert_eq!(ran.code, 66, "{name}: {ran:?}");
            one_line(&ran);
        }
    }
    for path in ["/dev/null", "/dev/zero", "/proc/self/mem", "/", "/no/such"] {
        let ran = run(perf_gate(["doctor", "--node", path]));
        assert_eq!(ran.code, 66, "{path}: {ran:?}");
        one_line(&ran);
    }
}
