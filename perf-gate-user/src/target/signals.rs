//! Signals to perf-gate, and which of them are the child's.
//!
//! perf-gate wants to leave no trace in how a program is stopped. The terminal sends its signals
//! (^C, ^\, a resize, a hang-up) to the whole foreground process group, the child included: such a
//! signal has reached the child already, and perf-gate only has to survive it. A signal that
//! somebody sends to perf-gate alone (`kill`, a CI runner) is meant for the program and passed on.
//! The kernel says which is which, so signals are blocked and read from a descriptor with their
//! origin, instead of being handled.
//!
//! Nothing escalates: a program may well live through any number of ^C (a REPL does), and whoever
//! wants it dead sends SIGKILL to perf-gate, which takes the child along. Once the child is gone,
//! the same signals ask perf-gate to stop waiting for orphans ([`SignalEvent::asks_to_stop`]).
//!
//! SIGTSTP and SIGCONT keep their default action: ^Z stops perf-gate and the child alike, and `fg`
//! continues both.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
};

use nix::sys::{
    signal::{
        SaFlags, SigAction, SigHandler, SigSet, SigmaskHow, Signal, pthread_sigmask, sigaction,
    },
    signalfd::{SfdFlags, SignalFd},
};

/// Signals that belong to the child when they come from a process.
const FORWARDED: [Signal; 7] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
];

#[derive(Debug, thiserror::Error)]
#[error(
    "cannot watch for signals: {what} failed ({source}); check the limit on open files (ulimit -n)"
)]
pub struct SignalError {
    what: &'static str,
    source: io::Error,
}

/// One signal to perf-gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignalEvent {
    /// Some child ended (or stopped): reap.
    Child,
    /// From the kernel, as the terminal's are: the whole foreground group has it.
    Terminal(Signal),
    /// From a process; 0 when that lives in an outer PID namespace.
    Sent { signal: Signal, sender: u32 },
}

impl SignalEvent {
    /// The signal to pass on to the direct child, if it is one.
    ///
    /// What the child itself sent is not: it signalled its own group (`kill 0`), itself included.
    #[must_use]
    pub fn to_forward(self, child: u32) -> Option<Signal> {
        match self {
            Self::Sent { signal, sender } if sender != child => Some(signal),
            _ => None,
        }
    }

    /// Whether somebody wants the run to end.
    #[must_use]
    pub const fn asks_to_stop(self) -> bool {
        match self {
            Self::Child => false,
            Self::Terminal(signal) | Self::Sent { signal, .. } => matches!(
                signal,
                Signal::SIGINT | Signal::SIGTERM | Signal::SIGHUP | Signal::SIGQUIT
            ),
        }
    }
}

/// Blocks the signals while it lives and reads them.
///
/// Make it before any thread is started: a thread that does not block them would die of them.
#[derive(Debug)]
pub struct Signals {
    fd: SignalFd,
    old: SigSet,
}

impl Signals {
    /// # Errors
    /// When the kernel gives no descriptor.
    pub fn new() -> Result<Self, SignalError> {
        let failed = |what| {
            move |errno: nix::Error| SignalError {
                what,
                source: errno.into(),
            }
        };
        // Started with SIGCHLD ignored, the kernel would reap children itself and their ends be lost.
        let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
        // SAFETY: the default action runs no code of ours.
        unsafe { sigaction(Signal::SIGCHLD, &default) }.map_err(failed("resetting SIGCHLD"))?;

        let mut set: SigSet = FORWARDED.into_iter().collect();
        set.add(Signal::SIGCHLD);
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let fd =
            SignalFd::with_flags(&set, flags).map_err(failed("opening a signal descriptor"))?;
        let mut old = SigSet::empty();
        pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&set), Some(&mut old))
            .map_err(failed("blocking signals"))?;
        Ok(Self { fd, old })
    }

    /// Everything that came since the last call.
    pub fn drain(&mut self) -> Vec<SignalEvent> {
        std::iter::from_fn(|| self.fd.read_signal().ok().flatten())
            .filter_map(|info| {
                let signal = Signal::try_from(info.ssi_signo.cast_signed()).ok()?;
                Some(match signal {
                    Signal::SIGCHLD => SignalEvent::Child,
                    // Codes above 0 are the kernel's own.
                    signal if info.ssi_code > 0 => SignalEvent::Terminal(signal),
                    signal => SignalEvent::Sent {
                        signal,
                        sender: info.ssi_pid,
                    },
                })
            })
            .collect()
    }
}

/// Readable when [`Signals::drain`] has something.
impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        // What came too late to matter must not kill perf-gate the moment it is unblocked.
        self.drain();
        let _ = pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&self.old), None);
    }
}

#[cfg(test)]
mod tests;
