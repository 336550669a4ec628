//! What perf-gate was started with, so that the child can be started with the same.
//!
//! To observe, perf-gate blocks signals, opens descriptors and may raise limits; fork hands all of
//! that on, and a program that behaves differently because it is watched is worthless as evidence.
//! So the state is photographed first thing in `main` and restored in the child: signal mask,
//! ignored signals (a `nohup` stays a `nohup`), resource limits, and the set of descriptors that
//! were meant to be passed on (a make jobserver, `3>log`). Every other descriptor is marked
//! close-on-exec in the child, whoever opened it and however.

use std::{
    io,
    mem::MaybeUninit,
    os::fd::{AsRawFd, IntoRawFd, RawFd},
};

use libc::{c_int, rlimit64, sigset_t};

/// Highest signal number of Linux.
const LAST_SIGNAL: c_int = 64;
/// `RLIM_NLIMITS`: resources 0 to 15.
const RESOURCES: u32 = 16;

/// The inherited state. See the module's text.
#[derive(Clone)]
pub struct Inherited {
    pub(super) mask: sigset_t,
    /// `ignored[n]`: signal n was ignored.
    pub(super) ignored: [bool; LAST_SIGNAL as usize + 1],
    /// Descriptors from 3 up without close-on-exec, ascending.
    pub(super) fds: Vec<RawFd>,
    pub(super) limits: Vec<(u32, rlimit64)>,
}

impl Inherited {
    /// Photographs the calling thread. Call it before perf-gate opens or blocks anything.
    ///
    /// SIGPIPE is the one thing that cannot be known: Rust's runtime ignores it before `main`. The
    /// child gets the default action, which is what nearly every program is started with.
    #[must_use]
    pub fn capture() -> Self {
        let mut mask = MaybeUninit::<sigset_t>::zeroed();
        // SAFETY: a null new set only reads; the old set is written to our own memory, and an
        // all-zero sigset_t is a valid empty set should the call fail.
        let mask = unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, std::ptr::null(), mask.as_mut_ptr());
            mask.assume_init()
        };
        let mut ignored = [false; LAST_SIGNAL as usize + 1];
        for (signal, slot) in (0..).zip(&mut ignored).skip(1) {
            *slot = signal != libc::SIGPIPE && is_ignored(signal);
        }
        let limits = (0..RESOURCES).filter_map(|r| Some((r, limit(r)?)));
        Self {
            mask,
            ignored,
            fds: passed_on_fds(),
            limits: limits.collect(),
        }
    }

    /// The ranges between the descriptors that are to be passed on, from 3 up.
    pub(super) fn fd_gaps(&self) -> Vec<(u32, u32)> {
        let mut gaps = Vec::with_capacity(self.fds.len() + 1);
        let mut from = 3u32;
        for fd in self.fds.iter().filter_map(|fd| u32::try_from(*fd).ok()) {
            if fd > from {
                gaps.push((from, fd - 1));
            }
            from = fd.saturating_add(1);
        }
        gaps.push((from, u32::MAX));
        gaps
    }
}

/// `struct sigaction` of the kernel on x86-64 (arch/x86/include/uapi/asm/signal.h).
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Action {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

/// Asks the kernel itself: the C library hides the two signals that it keeps for its threads, which a
/// parent may have ignored like any other, and handles them from the first thread on.
fn is_ignored(signal: c_int) -> bool {
    let mut old = Action::default();
    // SAFETY: a null new action only reads; the old one is written to our own memory.
    let done = unsafe {
        libc::syscall(
            libc::SYS_rt_sigaction,
            signal,
            std::ptr::null::<Action>(),
            &raw mut old,
            size_of::<u64>(),
        )
    };
    done == 0 && old.handler == libc::SIG_IGN
}

/// Ignores a signal, or gives it its default action; SIGKILL and SIGSTOP refuse. For the fresh child:
/// makes one system call.
pub(super) fn set_ignored(signal: c_int, ignored: bool) {
    let new = Action {
        handler: if ignored {
            libc::SIG_IGN
        } else {
            libc::SIG_DFL
        },
        ..Action::default()
    };
    // SAFETY: the new action is only read and runs no code of ours.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigaction,
            signal,
            &raw const new,
            std::ptr::null_mut::<Action>(),
            size_of::<u64>(),
        );
    }
}

fn limit(resource: u32) -> Option<rlimit64> {
    let mut value = rlimit64 {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: pid 0 is this process, the null new limit only reads, `value` is ours.
    let done = unsafe { libc::prlimit64(0, resource, std::ptr::null(), &raw mut value) };
    (done == 0).then_some(value)
}

/// Without /proc nothing above 2 is passed on: leaking is worse than withholding.
fn passed_on_fds() -> Vec<RawFd> {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else {
        return Vec::new();
    };
    let mut fds: Vec<RawFd> = entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|fd| {
            // SAFETY: F_GETFD takes no pointer; a closed number gives -1, which has every bit set
            // and so reads as close-on-exec.
            *fd > 2 && unsafe { libc::fcntl(*fd, libc::F_GETFD) } & libc::FD_CLOEXEC == 0
        })
        .collect();
    fds.sort_unstable();
    fds
}

/// Makes sure that descriptors 0, 1 and 2 are open, on /dev/null where they were closed.
///
/// Otherwise the next thing that perf-gate opens would become the child's stdin or stdout. Rust's
/// runtime does this too today, but does not promise it.
///
/// # Errors
/// When /dev/null cannot be opened.
pub fn secure_stdio() -> io::Result<()> {
    loop {
        let null = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/null")?;
        // The lowest free number is taken, so anything above 2 means that 0 to 2 are taken.
        if null.as_raw_fd() > 2 {
            return Ok(());
        }
        let fd = null.into_raw_fd();
        // SAFETY: clears the descriptor's flags; it is ours and stays open for good.
        unsafe { libc::fcntl(fd, libc::F_SETFD, 0) };
    }
}

/// Makes room: as many descriptors as we may have (each process of a tree takes several), and a file
/// that grows past `ulimit -f` is a failed write like any other, not our end. After
/// [`Inherited::capture`], so that the child is given both as they were.
pub fn survive_limits() {
    if let Some(mut files) = limit(libc::RLIMIT_NOFILE) {
        files.rlim_cur = files.rlim_max;
        // SAFETY: pid 0 is this process; the new limit is only read.
        unsafe {
            libc::prlimit64(
                0,
                libc::RLIMIT_NOFILE,
                &raw const files,
                std::ptr::null_mut(),
            )
        };
    }
    // SAFETY: ignoring a signal runs no code of ours.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_surround_what_is_passed_on() {
        let mut inherited = Inherited::capture();
        for (fds, gaps) in [
            (vec![], vec![(3, u32::MAX)]),
            (vec![3], vec![(4, u32::MAX)]),
            (vec![3, 4, 9], vec![(5, 8), (10, u32::MAX)]),
        ] {
            inherited.fds = fds;
            assert_eq!(inherited.fd_gaps(), gaps);
        }
    }

    #[test]
    fn sigpipe_is_never_taken_for_inherited() {
        assert!(is_ignored(libc::SIGPIPE), "Rust's runtime ignores it");
        assert!(!Inherited::capture().ignored[libc::SIGPIPE as usize]);
    }
}
