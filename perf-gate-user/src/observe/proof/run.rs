//! Running the control: a kernel side of its own, the binary under test with pipes for standard
//! streams, and a conversation. The control says what it did and waits; the figures are read while it
//! does nothing; one byte lets it go on.

use super::truth::{self, Outcome, Snapshot};
use crate::{
    kernel::{self, bpf::Scope},
    observe::{
        attach::{Links, Targets},
        kernel_side::{self, KernelSide},
        marks::MarkFile,
        pidfd,
    },
    target::{Identity, Inherited, Launch, launch},
    v8::{plan::Plan, spaces},
};
use nix::{
    fcntl::OFlag,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    unistd::pipe2,
};
use perf_gate_ebpf::{CONTROL_EXEC, Config, Control, MINOR_MARK_SWEEP, SCAVENGE};
use std::{
    ffi::OsString,
    fs::{File, OpenOptions},
    io::{Read as _, Write as _},
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::MetadataExt as _,
    },
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

const SCRIPT: &str = include_str!("control.cjs");
/// The whole control, on a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(30);
/// For what the collector's own threads still have to do after a step.
const SETTLE: Duration = Duration::from_secs(3);
/// `--minor-mc` became `--minor-ms` in V8 11.9; node went from 11.3 to 12.4.
const MINOR_MS_SINCE: u32 = 12;

/// Runs the control on the binary of process `pid`.
///
/// # Errors
/// A sentence, when it did not run to its end.
pub fn control(
    pid: u32,
    targets: &Targets<'_>,
    plan: &Plan,
    identity: &Identity,
    inherited: &Inherited,
) -> Result<Vec<Outcome>, String> {
    let exe = executable(pid);
    let mut side = KernelSide::load().map_err(|e| e.to_string())?;
    side.follow().map_err(|e| e.to_string())?;
    let task_pid_offset = kernel::btf::task_pid_offset().unwrap_or(0);
    let mut outcomes = Vec::new();
    let minor_flag = if plan.version().is_none_or(|v| v.major >= MINOR_MS_SINCE) {
        "--minor-ms"
    } else {
        "--minor-mc"
    };
    for minor in [None, Some(minor_flag)] {
        let mut conversation = Conversation::begin(
            &mut side,
            &exe,
            minor,
            targets,
            task_pid_offset,
            identity,
            inherited,
        )?;
        outcomes.extend(conversation.hold(plan)?);
    }
    Ok(outcomes)
}

/// A path that runs the very file that `pid` runs: its own, unless that now means another file.
fn executable(pid: u32) -> PathBuf {
    let link = PathBuf::from(format!("/proc/{pid}/exe"));
    let id = |m: std::fs::Metadata| (m.dev(), m.ino());
    match std::fs::read_link(&link) {
        Ok(path)
            if std::fs::metadata(&path).ok().map(id) == std::fs::metadata(&link).ok().map(id) =>
        {
            path
        }
        _ => link,
    }
}

struct Conversation<'a> {
    side: &'a mut KernelSide,
    child: launch::Running,
    tgid: u32,
    proc_id: u64,
    to: File,
    from: File,
    minor_kind: usize,
    deadline: Instant,
    _links: Links,
    _marks: MarkFile,
}

impl<'a> Conversation<'a> {
    fn begin(
        side: &'a mut KernelSide,
        exe: &std::path::Path,
        minor: Option<&str>,
        targets: &Targets<'_>,
        task_pid_offset: u32,
        identity: &Identity,
        inherited: &Inherited,
    ) -> Result<Self, String> {
        let pipe = || pipe2(OFlag::O_CLOEXEC).map_err(|e| format!("no pipe: {e}"));
        let (stdin, to) = pipe()?;
        let (from, stdout) = pipe()?;
        let stderr: OwnedFd = OpenOptions::new()
            .write(true)
            .open("/dev/null")
            .map_err(|e| format!("/dev/null: {e}"))?
            .into();
        let mut argv: Vec<OsString> = vec![exe.into(), "--expose-gc".into()];
        argv.extend(minor.map(Into::into));
        argv.extend(["-e".into(), SCRIPT.into()]);
        argv.extend(minor.map(|_| "minor-only".into()));
        let marks =
            MarkFile::make(identity.ids()).map_err(|e| format!("no temporary file: {e}"))?;
        let launch = Launch {
            argv,
            identity: identity.clone(),
            env: vec![("NODE_OPTIONS".into(), "".into()), marks.variable()],
            stdio: Some(Arc::new([stdin, stdout, stderr])),
            ..Launch::default()
        };
        let suspended = launch::spawn(&launch, inherited).map_err(|e| e.to_string())?;
        // Our copies of its ends would keep the pipes open after it.
        drop(launch);
        let (ns_dev, ns_ino) = kernel_side::pid_namespace();
        let config = Config {
            ns_dev,
            ns_ino,
            root_pid: suspended.pid(),
            task_pid_offset,
            stop_at_exec: 1,
            pad: 0,
            nonce: marks.nonce,
        };
        side.config
            .set(0, config, 0)
            .map_err(|e| format!("BPF map: {e}"))?;
        let child = suspended
            .release()
            .and_then(launch::Released::wait_exec)
            .map_err(|e| e.to_string())?;
        let mut conversation = Self {
            side,
            child,
            tgid: 0,
            proc_id: 0,
            to: to.into(),
            from: from.into(),
            minor_kind: if minor.is_some() {
                MINOR_MARK_SWEEP
            } else {
                SCAVENGE
            },
            deadline: Instant::now() + PATIENCE,
            _links: Links::default(),
            _marks: marks,
        };
        let exec = conversation.await_exec()?;
        conversation.tgid = exec.tgid;
        conversation.proc_id = exec.proc_id;
        let scope = if conversation.side.multi {
            Scope::Process(conversation.child.pid())
        } else {
            Scope::Everyone
        };
        conversation._links = targets
            .attach(conversation.side, scope)
            .map_err(|e| e.to_string())?;
        if exec.stopped != 0 {
            pidfd::kill(conversation.child.pid(), libc::SIGCONT)
                .map_err(|e| format!("cannot continue it: {e}"))?;
        }
        Ok(conversation)
    }

    fn await_exec(&mut self) -> Result<Control, String> {
        loop {
            if let Some(c) = self
                .side
                .drain_control()
                .into_iter()
                .find(|c| c.kind == CONTROL_EXEC)
            {
                return Ok(c);
            }
            wait_readable(&self.side.control, self.deadline)?;
        }
    }

    /// Talks until the control ends.
    fn hold(&mut self, plan: &Plan) -> Result<Vec<Outcome>, String> {
        let old_space = spaces::old_space_id(plan.version()) as usize;
        let mut outcomes = Vec::new();
        let mut before: Option<Snapshot> = None;
        while let Some(line) = self.line()? {
            let mut words = line.split(' ');
            let step = words.next().unwrap_or_default();
            let truth: Vec<u64> = words.filter_map(|w| w.parse().ok()).collect();
            let settle = Instant::now() + SETTLE;
            let now = loop {
                let after = self.snapshot()?;
                let Some(before) = &before else { break after };
                let seen = truth::judge(step, &truth, before, &after, self.minor_kind, old_space);
                let good = seen.iter().all(|(_, r)| r.is_ok());
                if good || Instant::now() >= settle {
                    outcomes.extend(seen);
                    break after;
                }
                std::thread::sleep(Duration::from_millis(2));
            };
            before = Some(now);
            let _ = self.to.write_all(b"\n");
        }
        match self.child.wait() {
            crate::model::End::Exited(0) => Ok(outcomes),
            end => Err(format!("it ended early ({end:?})")),
        }
    }

    /// The next line; `None` at its end.
    fn line(&mut self) -> Result<Option<String>, String> {
        let mut line = Vec::new();
        loop {
            wait_readable(&self.from, self.deadline)?;
            let mut byte = [0];
            match self.from.read(&mut byte) {
                Ok(0) => return Ok(None),
                Ok(_) if byte[0] == b'\n' => {
                    return Ok(Some(String::from_utf8_lossy(&line).into_owned()));
                }
                Ok(_) => line.push(byte[0]),
                Err(e) => return Err(format!("cannot hear it: {e}")),
            }
        }
    }

    fn snapshot(&self) -> Result<Snapshot, String> {
        let proc = self
            .side
            .procs
            .get(&self.tgid, 0)
            .map_err(|e| format!("its record cannot be read: {e}"))?;
        let mut isos: Vec<_> = self
            .side
            .isos
            .iter()
            .filter_map(Result::ok)
            .map(|(_, iso)| iso)
            .chain(
                self.side
                    .dead_isos
                    .iter()
                    .filter_map(Result::ok)
                    .map(|(_, iso)| iso),
            )
            .filter(|iso| iso.proc_id == self.proc_id)
            .collect();
        isos.sort_by_key(|iso| iso.seq);
        let windows = self
            .side
            .windows
            .iter()
            .filter_map(Result::ok)
            .map(|(_, w)| w)
            .filter(|w| w.proc_id == self.proc_id)
            .collect();
        Ok(Snapshot {
            proc,
            isos,
            windows,
        })
    }
}

impl Drop for Conversation<'_> {
    fn drop(&mut self) {
        if self.child.signal(nix::sys::signal::Signal::SIGKILL) {
            self.child.wait();
        }
    }
}

fn wait_readable(fd: &impl AsFd, deadline: Instant) -> Result<(), String> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(format!("it took more than {} s", PATIENCE.as_secs()));
        }
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(fd.as_fd(), PollFlags::POLLIN)], timeout) {
            Ok(0) | Err(nix::Error::EINTR) => {}
            Ok(_) => return Ok(()),
            Err(e) => return Err(format!("waiting for it failed: {e}")),
        }
    }
}
