//! Running perf-gate where the helpers of the suite are too polite: signals, terminals, kills, limits.

use perf_gate_tests::{Node, binary, cache_dir};
use std::{
    ffi::OsStr,
    fs,
    io::Read,
    os::unix::process::{CommandExt as _, ExitStatusExt as _},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Longer than anything here takes on a busy machine; a hang is what several tests look for.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A run that was not a clean `watch`.
#[derive(Debug)]
pub struct Ran {
    pub code: i32,
    pub out: String,
    pub err: String,
}

/// `perf-gate ARGS`, in a process group of its own and with the suite's cache.
pub fn perf_gate<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(binary());
    command.args(args);
    with_surroundings(&mut command);
    command
}

/// `sh -c SCRIPT sh PERF-GATE NODE`, likewise.
pub fn shell(script: &str, node: &Node) -> Command {
    let mut command = Command::new("sh");
    command
        .args(["-c", script, "sh"])
        .arg(binary())
        .arg(&node.path);
    with_surroundings(&mut command);
    command
}

/// The suite's cache, and no options of the machine's.
pub fn environment(command: &mut Command) -> &mut Command {
    command
        .env("PERF_GATE_CACHE_DIR", cache_dir())
        .env_remove("NODE_OPTIONS")
}

fn with_surroundings(command: &mut Command) {
    environment(command)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
}

/// Runs to the end, or fails the test after [`PATIENCE`].
pub fn run(mut command: Command) -> Ran {
    let child = command.spawn().expect("it starts");
    finish(child, &format!("{command:?}"))
}

pub fn finish(mut child: Child, what: &str) -> Ran {
    let out = reader(child.stdout.take());
    let err = reader(child.stderr.take());
    let status = wait(&mut child);
    let (out, err) = (join(out), join(err));
    let Some(status) = status else {
        panic!("still running: {what}\n{out}\n{err}");
    };
    let code = status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or_default());
    Ran { code, out, err }
}

fn wait(child: &mut Child) -> Option<ExitStatus> {
    let end = until(PATIENCE, || child.try_wait().expect("it can be waited for"));
    if end.is_none() {
        let group = nix::unistd::Pid::from_raw(child.id().cast_signed());
        let _ = nix::sys::signal::killpg(group, nix::sys::signal::SIGKILL);
        let _ = child.wait();
    }
    end
}

fn reader(from: Option<impl Read + Send + 'static>) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut from) = from {
            let _ = from.read_to_end(&mut bytes);
        }
        bytes
    })
}

fn join(reader: thread::JoinHandle<Vec<u8>>) -> String {
    let bytes = reader.join().expect("a reader ends");
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Asks until there is an answer.
pub fn until<T>(patience: Duration, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + patience;
    loop {
        if let Some(answer) = ask() {
            return Some(answer);
        }
        if Instant::now() > end {
            return None;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Processes, not counting zombies, whose command line holds `mark`.
pub fn alive(mark: &str) -> Vec<(i32, String)> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(|pid: i32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            let own = pid == std::process::id().cast_signed();
            (!own && line.contains(mark)).then_some((pid, line))
        })
        .collect()
}

/// Fails the test when processes with `mark` stay for longer than a moment.
pub fn expect_gone(mark: &str) {
    if until(Duration::from_secs(10), || {
        alive(mark).is_empty().then_some(())
    })
    .is_none()
    {
        let left: Vec<_> = alive(mark)
            .into_iter()
            .map(|(pid, line)| (state(pid), line))
            .collect();
        panic!("left behind: {left:?}");
    }
}

pub fn state(pid: i32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')').next()?.trim().chars().next()
}

/// The build that tests which do not care about the version run on.
pub fn node() -> Option<Node> {
    if !perf_gate_tests::is_root() {
        perf_gate_tests::say_skipped("loading eBPF programs needs root");
        return None;
    }
    Node::or_skip("22.23.5")
}

/// Whether a program that a test wants is there; says so when it is not.
pub fn have(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let there = std::env::split_paths(&path).any(|dir| dir.join(program).is_file());
    if !there {
        perf_gate_tests::say_skipped(&format!("no {program} here"));
    }
    there
}
