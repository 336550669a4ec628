//! Programs that tests run under observation: this executable again, as one of the tests below. Under
//! cargo's own run they have nothing to do.

use nix::{
    libc,
    sys::wait::{WaitPidFlag, WaitStatus, waitpid},
    unistd::Pid,
};
use perf_gate_tests::Node;
use std::{
    env,
    ffi::{CString, OsString},
    fs,
    io::Write as _,
    os::{fd::FromRawFd as _, unix::process::CommandExt as _},
    path::Path,
    process::Command,
};

const NODE: &str = "PERF_GATE_FIXTURE_NODE";

/// The command that runs the fixture of that name on a node.
pub fn command(name: &str, node: &Node) -> Vec<OsString> {
    let set = format!("{NODE}={}", node.path.display());
    let exe = env::current_exe().expect("the test knows its own path");
    let test = format!("fixtures::{name}");
    [
        "env".into(),
        set.into(),
        exe.into(),
        "--exact".into(),
        test.into(),
        "--nocapture".into(),
        "--test-threads=1".into(),
    ]
    .into()
}

fn node() -> Option<OsString> {
    env::var_os(NODE)
}

/// A parent that wants to be told of stops and continuations.
#[test]
fn watchful_parent() {
    let Some(node) = node() else { return };
    let mut command = Command::new(node);
    #[expect(clippy::zombie_processes, reason = "waitpid below is the wait")]
    let child = command.args(["-e", "0"]).spawn().expect("node starts");
    let pid = Pid::from_raw(child.id().cast_signed());
    let flags = WaitPidFlag::WUNTRACED | WaitPidFlag::WCONTINUED;
    loop {
        let seen = waitpid(pid, Some(flags)).expect("it can be waited for");
        println!("SAW {seen:?}");
        if matches!(seen, WaitStatus::Exited(..) | WaitStatus::Signaled(..)) {
            break;
        }
    }
}

/// An exec that does not come from the main thread, whose id it takes over.
#[test]
fn exec_from_a_thread() {
    let Some(node) = node() else { return };
    let run = move || {
        Command::new(node)
            .args(["--expose-gc", "-e", "gc()"])
            .exec()
    };
    let error = std::thread::spawn(run).join();
    panic!("{error:?}");
}

/// A program without a path.
#[test]
fn exec_of_a_memfd() {
    let Some(node) = node() else { return };
    // SAFETY: a valid name; the result is a new descriptor, which the file then owns.
    let mut file = unsafe {
        let fd = libc::memfd_create(c"program".as_ptr(), 0);
        assert!(fd >= 0);
        fs::File::from_raw_fd(fd)
    };
    file.write_all(&fs::read(Path::new(&node)).expect("node can be read"))
        .expect("there is memory for it");
    let argv = ["node", "--expose-gc", "-e", "gc()"].map(|a| CString::new(a).expect("no NUL"));
    let env: Vec<CString> = Vec::new();
    let error = nix::unistd::fexecve(file, &argv, &env);
    panic!("{error:?}");
}
