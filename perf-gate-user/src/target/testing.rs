//! Help for this module's tests.
//!
//! Tests share one process and run on many threads, while signal masks, subreapers and "wait for
//! any child" belong to a whole process. Such a test runs itself again, alone in a process of its
//! own, through [`alone`].

use std::{
    ffi::OsString,
    fs::{self, Permissions},
    io::Write,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command},
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{SigSet, SigmaskHow, sigprocmask},
    unistd::{Gid, Uid},
};

use super::{
    Identity, Inherited, Launch,
    identity::Invoker,
    launch::{LaunchError, Running, spawn},
};

const NOBODY: u32 = 65534;
/// The word of a test that only wants to be alone.
pub(super) const ALONE: &str = "alone";
pub(super) const MARK: &str = "PERF_GATE_TEST_ALONE";

/// `true` in the process that should run the test's body; elsewhere runs it there.
///
/// The process is a session leader and every thread of it has all signals blocked, as all of
/// perf-gate's have the ones it reads.
pub(super) fn alone(name: &str) -> bool {
    if std::env::var_os(MARK).is_some() {
        return true;
    }
    let done = rerun(name, ALONE).wait().unwrap();
    assert!(done.success(), "{name} alone: {done}");
    false
}

/// Starts the test in a process of its own, with a word that it finds through [`word`].
pub(super) fn rerun(name: &str, word: &str) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(MARK, word);
    // SAFETY: both are async-signal-safe system calls.
    unsafe {
        command.pre_exec(|| {
            nix::unistd::setsid()?;
            sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), None)?;
            Ok(())
        });
    }
    command.spawn().unwrap()
}

pub(super) fn word() -> Option<String> {
    std::env::var(MARK).ok()
}

/// What a process started from a shell inherits, whatever this test process did to itself.
pub(super) fn plain() -> Inherited {
    let mut inherited = Inherited::capture();
    inherited.mask = *SigSet::empty().as_ref();
    inherited.fds.clear();
    inherited
}

/// The user nobody, as if it had called sudo; `None` (said aloud) without the right to become it.
pub(super) fn nobody() -> Option<Identity> {
    if !Uid::effective().is_root() {
        skipped("becoming another user needs root");
        return None;
    }
    let gid = Gid::from_raw(NOBODY);
    Some(Identity {
        user: Some(Invoker {
            uid: Uid::from_raw(NOBODY),
            gid,
            groups: vec![gid],
            name: "nobody".into(),
            home: "/nonexistent".into(),
            shell: "/bin/sh".into(),
            path: None,
        }),
    })
}

/// A directory that anybody may write to.
pub(super) fn open_dir() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o777)).unwrap();
    dir
}

pub(super) fn file(dir: &Path, name: &str, mode: u32, content: &[u8]) -> PathBuf {
    let path = dir.join(name);
    fs::write(&path, content).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    path
}

pub(super) fn argv(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}

pub(super) fn start(launch: &Launch) -> Result<Running, LaunchError> {
    spawn(launch, &plain())?.release()?.wait_exec()
}

/// What a shell script, run by the launcher, wrote to `$OUT`.
pub(super) fn output(mut launch: Launch, inherited: &Inherited, script: &str) -> String {
    let dir = open_dir();
    let out = dir.path().join("out");
    launch.argv = argv(&["/bin/sh", "-c", &format!("exec >\"$OUT\"; {script}")]);
    launch.env.push(("OUT".into(), out.clone().into()));
    let suspended = spawn(&launch, inherited).unwrap();
    suspended.release().unwrap().wait_exec().unwrap().wait();
    fs::read_to_string(out).unwrap()
}

/// Waits up to ten seconds.
pub(super) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !done() {
        assert!(Instant::now() < end, "never came: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Gone, or a zombie that nobody has waited for yet.
pub(super) fn is_dead(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .ok()
        .and_then(|stat| Some(stat.rsplit_once(") ")?.1.starts_with(['Z', 'X'])))
        .unwrap_or(true)
}

/// Says so past the test harness, which would swallow it.
pub(super) fn skipped(why: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED: {why}");
}
