//! Launching the program suspended.
//!
//! Probes must sit before the first instruction, so the program is started in two steps. [`spawn`]
//! forks a child that takes on its identity, reports ready and then blocks on a pipe, the gate;
//! its pid can now be put under observation. [`Suspended::release`] opens the gate, and
//! [`Released::wait_exec`] says whether the program was executed: the child's status pipe closes by
//! itself at a successful exec, and carries the errno of a failed one. That answer comes out of the
//! exec itself, before a signal sent during it can stop the process, so waiting for it is safe even
//! when the kernel side stops every new program for inspection.
//!
//! The child stays in perf-gate's process group and on its terminal. It is killed when the *thread*
//! that spawned it ends, so spawn from the main thread. The kernel waives that when the program is
//! setuid or has file capabilities.

mod error;

use std::{
    ffi::{CString, OsStr, OsString},
    fs::File,
    io::{self, Read, Write},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
        unix::ffi::OsStrExt,
    },
    path::PathBuf,
    sync::Arc,
};

use nix::{
    fcntl::OFlag,
    sys::{
        signal::{SigSet, SigmaskHow, Signal, pthread_sigmask},
        socket::{
            AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockType, recvmsg, socketpair,
        },
    },
    unistd::pipe2,
};

pub use self::error::LaunchError;
use self::error::What;
use super::{
    child::{self, CArray, Credentials, Ends, MESSAGE_LEN, Message, Plan, Stage},
    hold::Hold,
    identity::Identity,
    inherit::Inherited,
    reap, search,
};
use crate::model::End;

/// What to launch.
#[derive(Clone, Debug, Default)]
pub struct Launch {
    /// The command and its arguments.
    pub argv: Vec<OsString>,
    pub identity: Identity,
    /// `None`: perf-gate's own directory.
    pub cwd: Option<PathBuf>,
    /// Set on top of the environment that the identity makes of perf-gate's own.
    pub env: Vec<(OsString, OsString)>,
    /// Its standard input, output and error; `None`: perf-gate's own.
    pub stdio: Option<Arc<[OwnedFd; 3]>>,
    /// Hold every program of the tree at its start ([`Suspended::take_hold`]), if the kernel lets us.
    pub hold: bool,
    /// Files and then their folders, to be gone even when perf-gate is killed; known to the hold's guard.
    pub leftovers: Vec<PathBuf>,
}

/// Forks the program and holds it before its exec, its identity already dropped.
///
/// # Errors
/// When there is nothing to launch, no process can be made, or the child could not become what it
/// should be. Whether the program can be executed shows only after the release.
pub fn spawn(launch: &Launch, inherited: &Inherited) -> Result<Suspended, LaunchError> {
    let command = launch.argv.first().ok_or(LaunchError::NoCommand)?;
    let env = environment(launch);
    let candidates = search::candidates(command, search::lookup(&env, "PATH"));
    let plan = plan(launch, inherited, &env, &candidates)?;

    let (gate_read, gate_write) = pipe2(OFlag::O_CLOEXEC).map_err(start("making a pipe"))?;
    // A socket, because descriptors travel over it too.
    let (status_read, status_write) = socketpair(
        AddressFamily::Unix,
        SockType::SeqPacket,
        None,
        SockFlag::SOCK_CLOEXEC,
    )
    .map_err(start("making a socket"))?;
    let ends = Ends {
        gate: gate_read.as_raw_fd(),
        parents_gate: gate_write.as_raw_fd(),
        status: status_write.as_raw_fd(),
    };
    let pid = fork(&plan, &ends)?;
    drop((gate_read, status_write));
    // Not yet waited for, so the number is still this child's.
    let handle = match pidfd_open(pid) {
        Ok(handle) => handle,
        Err(source) => {
            // The child ends by itself at a closed gate.
            drop(gate_write);
            reap::wait_for(pid.cast_unsigned());
            return Err(LaunchError::Start {
                what: "opening a process handle",
                source,
            });
        }
    };
    let mut suspended = Suspended {
        running: Some(Running {
            pid: pid.cast_unsigned(),
            handle,
        }),
        gate: Some(File::from(gate_write)),
        status: Some(File::from(status_read)),
        hold: None,
        leftovers: launch
            .leftovers
            .iter()
            .filter_map(|path| child::c_path(path))
            .collect(),
        what: What {
            command: command.clone(),
            candidates,
            cwd: launch.cwd.clone(),
            user: launch.identity.user_name().map(str::to_owned),
        },
    };
    suspended.await_ready()?;
    Ok(suspended)
}

fn environment(launch: &Launch) -> Vec<(OsString, OsString)> {
    let mut env = launch.identity.env_for_child(std::env::vars_os());
    env.retain(|(name, _)| launch.env.iter().all(|(set, _)| set != name));
    env.extend(launch.env.iter().cloned());
    env
}

fn plan<'a>(
    launch: &Launch,
    inherited: &'a Inherited,
    env: &[(OsString, OsString)],
    candidates: &[PathBuf],
) -> Result<Plan<'a>, LaunchError> {
    let nul = |what| move || LaunchError::Nul { what };
    let argv: Option<Vec<_>> = launch.argv.iter().map(|arg| c_string(&[arg])).collect();
    let envp: Option<Vec<_>> = env
        .iter()
        .map(|(name, value)| c_string(&[name, OsStr::new("="), value]))
        .collect();
    let paths: Option<Vec<_>> = candidates.iter().map(|path| child::c_path(path)).collect();
    let cwd = match &launch.cwd {
        Some(cwd) => Some(child::c_path(cwd).ok_or_else(nul("the working directory"))?),
        None => None,
    };
    Ok(Plan {
        argv: CArray::new(argv.ok_or_else(nul("an argument"))?),
        envp: CArray::new(envp.ok_or_else(nul("an environment variable"))?),
        candidates: paths.ok_or_else(nul("its path"))?,
        cwd,
        credentials: launch.identity.user.as_ref().map(|user| Credentials {
            uid: user.uid.as_raw(),
            gid: user.gid.as_raw(),
            groups: user.groups.iter().map(|gid| gid.as_raw()).collect(),
        }),
        inherited,
        hold: launch.hold,
        fd_gaps: inherited.fd_gaps(),
        stdio: launch
            .stdio
            .as_ref()
            .map(|fds| [0, 1, 2].map(|i| fds[i].as_raw_fd())),
        parent: std::process::id().cast_signed(),
    })
}

fn c_string(parts: &[&OsStr]) -> Option<CString> {
    let parts: Vec<&[u8]> = parts.iter().map(|part| part.as_bytes()).collect();
    CString::new(parts.concat()).ok()
}

/// Forks with every signal blocked, so that the child meets none before it is in order.
fn fork(plan: &Plan<'_>, ends: &Ends) -> Result<libc::pid_t, LaunchError> {
    let mut old = SigSet::empty();
    let block = SigSet::all();
    pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&block), Some(&mut old))
        .map_err(start("blocking signals"))?;
    // SAFETY: the child runs nothing but `child::run`, which allocates and locks nothing.
    let pid = match unsafe { libc::fork() } {
        // SAFETY: this is the fresh child, and all signals were blocked above.
        0 => unsafe { child::run(plan, ends) },
        pid => pid,
    };
    // Before anything else that may overwrite it.
    let forked = io::Error::last_os_error();
    pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&old), None)
        .map_err(start("unblocking signals"))?;
    match pid {
        -1 => Err(LaunchError::Start {
            what: "fork",
            source: forked,
        }),
        pid => Ok(pid),
    }
}

fn pidfd_open(pid: libc::pid_t) -> io::Result<OwnedFd> {
    // SAFETY: no pointers; the result is a descriptor of ours (close-on-exec by definition) or -1.
    match unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) } {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: just opened and owned by nobody else; a descriptor fits a c_int.
        fd => Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) }),
    }
}

fn start(what: &'static str) -> impl Fn(nix::Error) -> LaunchError {
    move |errno| LaunchError::Start {
        what,
        source: errno.into(),
    }
}

/// The child, set up and waiting at the gate. Dropping it ends the child and waits for it.
#[derive(Debug)]
pub struct Suspended {
    /// The three are there until the release takes them.
    running: Option<Running>,
    gate: Option<File>,
    status: Option<File>,
    hold: Option<Hold>,
    leftovers: Vec<CString>,
    what: What,
}

impl Suspended {
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.running.as_ref().map_or(0, Running::pid)
    }

    /// What holds the programs of the tree, if it was wanted and the kernel let us. From the release on
    /// somebody must answer it.
    pub fn take_hold(&mut self) -> Option<Hold> {
        self.hold.take()
    }

    fn await_ready(&mut self) -> Result<(), LaunchError> {
        let Some(status) = &mut self.status else {
            return Ok(());
        };
        let (message, listener) = receive_message(status)?;
        if let Some(listener) = listener {
            let hold =
                Hold::new(listener, &self.leftovers).map_err(|source| LaunchError::Start {
                    what: "starting a guard",
                    source,
                })?;
            self.hold = Some(hold);
        }
        match message {
            Some(Message {
                stage: Stage::Ready,
                ..
            }) => Ok(()),
            Some(message) => Err(self.what.error(message)),
            // Somebody killed it while it was being set up.
            None => Err(LaunchError::Died {
                end: self.running.take().map_or(End::Unknown, |r| r.wait()),
            }),
        }
    }

    /// Opens the gate: the child goes on to execute the program. Does not wait.
    ///
    /// A child that was killed meanwhile is not an error here: its end is reported like any other.
    ///
    /// # Errors
    /// When the gate cannot be written to.
    pub fn release(mut self) -> Result<Released, LaunchError> {
        let (Some(mut gate), Some(status), Some(running)) =
            (self.gate.take(), self.status.take(), self.running.take())
        else {
            return Err(LaunchError::Died { end: End::Unknown });
        };
        if let Err(source) = gate.write_all(&[1])
            && source.kind() != io::ErrorKind::BrokenPipe
        {
            // Put back, so that dropping ends the child.
            (self.gate, self.running) = (Some(gate), Some(running));
            return Err(LaunchError::Start {
                what: "releasing the program",
                source,
            });
        }
        let what = std::mem::take(&mut self.what);
        Ok(Released {
            status,
            running,
            what,
        })
    }
}

impl Drop for Suspended {
    fn drop(&mut self) {
        drop(self.gate.take());
        if let Some(running) = self.running.take() {
            // It may be stopped and not notice the closed gate.
            running.signal(Signal::SIGKILL);
            running.wait();
        }
    }
}

/// The child on its way through exec.
#[derive(Debug)]
pub struct Released {
    status: File,
    running: Running,
    what: What,
}

impl Released {
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.running.pid
    }

    /// Waits for the outcome of the exec. Readiness can be polled for on [`AsFd`].
    ///
    /// A child that was killed on the way counts as running: the reaper will tell its end.
    ///
    /// # Errors
    /// When the program could not be executed; the child is then already waited for.
    pub fn wait_exec(mut self) -> Result<Running, LaunchError> {
        match read_message(&mut self.status)? {
            None => Ok(self.running),
            Some(message) => {
                self.running.wait();
                Err(self.what.error(message))
            }
        }
    }
}

impl AsFd for Released {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.status.as_fd()
    }
}

/// A message and the descriptor that may come with it.
fn receive_message(status: &File) -> Result<(Option<Message>, Option<OwnedFd>), LaunchError> {
    let failed = start("hearing from the program");
    let mut bytes = [0; MESSAGE_LEN];
    let mut parts = [io::IoSliceMut::new(&mut bytes)];
    let mut space = nix::cmsg_space!(RawFd);
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let got = loop {
        match recvmsg::<()>(status.as_raw_fd(), &mut parts, Some(&mut space), flags) {
            Err(nix::Error::EINTR) => {}
            other => break other.map_err(&failed)?,
        }
    };
    let mut listener = None;
    for part in got.cmsgs().map_err(&failed)? {
        if let ControlMessageOwned::ScmRights(fds) = part {
            // SAFETY: the kernel just made it for us, and nobody else owns it.
            listener = fds.first().map(|fd| unsafe { OwnedFd::from_raw_fd(*fd) });
        }
    }
    let whole = got.bytes == MESSAGE_LEN;
    Ok((whole.then(|| Message::decode(bytes)).flatten(), listener))
}

/// `None` at the end of file: nothing (more) to say.
fn read_message(status: &mut File) -> Result<Option<Message>, LaunchError> {
    let mut bytes = [0; MESSAGE_LEN];
    match status.read_exact(&mut bytes) {
        Ok(()) => Ok(Message::decode(bytes)),
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(source) => Err(LaunchError::Start {
            what: "hearing from the program",
            source,
        }),
    }
}

/// The direct child. Its handle can never mean another process, even after the pid was used again.
#[derive(Debug)]
pub struct Running {
    pid: u32,
    handle: OwnedFd,
}

impl Running {
    #[must_use]
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// Sends a signal; `false` when the child is gone or may not be signalled.
    pub fn signal(&self, signal: Signal) -> bool {
        let (fd, signal) = (self.handle.as_raw_fd(), signal as libc::c_int);
        // SAFETY: a null siginfo asks for the one that kill() makes; no other pointer.
        unsafe {
            libc::syscall(
                libc::SYS_pidfd_send_signal,
                fd,
                signal,
                std::ptr::null::<libc::siginfo_t>(),
                0,
            ) == 0
        }
    }

    /// Waits for this child alone; for use where no [`reap::Reaper`] runs.
    pub fn wait(&self) -> End {
        reap::wait_for(self.pid)
    }
}

/// Readable once the child has ended.
impl AsFd for Running {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }
}

#[cfg(test)]
mod tests;
