//! Who ended, and how.
//!
//! A program's tree outlives its root: daemons, detached helpers, test runners that leave workers
//! behind. perf-gate makes itself the *subreaper* of the tree, so that every orphan in it becomes
//! its child instead of init's, its end is seen and nothing is left as a zombie. The kernel hands
//! over resource usage with each end. It is the usage of the process *and of the descendants that
//! it waited for itself*; the peak RSS is the largest single one among them.
//!
//! Only ends are reported; stops and continuations belong to whoever causes them.

use std::{io, mem::MaybeUninit, time::Duration};

use libc::{c_int, rusage, timeval};

use crate::model::End;

/// One ended process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reaped {
    pub pid: u32,
    pub end: End,
    pub usage: Usage,
}

/// The kernel's account of an ended process and of the descendants that it waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The largest among them, not their sum.
    pub peak_rss_bytes: u64,
    pub minor_faults: u64,
    pub major_faults: u64,
    pub voluntary_switches: u64,
    pub involuntary_switches: u64,
    pub user_ns: u64,
    pub system_ns: u64,
}

#[derive(Debug, thiserror::Error)]
#[error(
    "cannot adopt orphaned processes ({source}); the kernel or a seccomp profile forbids \
     PR_SET_CHILD_SUBREAPER, run outside of that sandbox"
)]
pub struct ReapError {
    source: io::Error,
}

/// Adopts the tree's orphans while it lives, and collects ends. One per process.
#[derive(Debug)]
pub struct Reaper {
    /// Whether the process was a subreaper already.
    before: c_int,
}

impl Reaper {
    /// # Errors
    /// When the kernel refuses.
    pub fn new() -> Result<Self, ReapError> {
        let mut before: c_int = 0;
        // SAFETY: the only pointer is to our own integer.
        let done = unsafe {
            libc::prctl(libc::PR_GET_CHILD_SUBREAPER, &raw mut before) == 0
                && libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) == 0
        };
        match done {
            true => Ok(Self { before }),
            false => Err(ReapError {
                source: io::Error::last_os_error(),
            }),
        }
    }

    /// Everything that ended since the last call, without waiting.
    pub fn reap(&mut self) -> Vec<Reaped> {
        std::iter::from_fn(|| wait4(-1, libc::WNOHANG)).collect()
    }

    /// One that ended, left as it is: its figures can still be read.
    #[must_use]
    pub fn peek(&self) -> Option<u32> {
        // SAFETY: WNOWAIT leaves everything as it is; the kernel writes to our own siginfo, which is
        // all zero when nobody ended.
        unsafe {
            let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
            let what = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
            if libc::waitid(libc::P_ALL, 0, info.as_mut_ptr(), what) != 0 {
                return None;
            }
            u32::try_from(info.assume_init().si_pid())
                .ok()
                .filter(|pid| *pid != 0)
        }
    }

    /// Reaps the one that [`Self::peek`] showed.
    pub fn take(&mut self, pid: u32) -> Option<Reaped> {
        wait4(pid.cast_signed(), libc::WNOHANG)
    }

    /// Whether any child or adopted orphan is left, ended but not yet reaped ones included.
    #[must_use]
    pub fn alive(&self) -> bool {
        // SAFETY: WNOWAIT leaves everything as it is; the kernel writes to our own siginfo.
        unsafe {
            let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
            let what = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
            libc::waitid(libc::P_ALL, 0, info.as_mut_ptr(), what) == 0
        }
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        // SAFETY: takes a number only.
        unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, self.before) };
    }
}

/// Waits until this child ends.
pub(super) fn wait_for(pid: u32) -> End {
    wait4(pid.cast_signed(), 0).map_or(End::Unknown, |reaped| reaped.end)
}

/// `None` when there is nothing to report: none ended, or no such child.
fn wait4(pid: libc::pid_t, options: c_int) -> Option<Reaped> {
    loop {
        let mut status = 0;
        let mut usage = MaybeUninit::<rusage>::zeroed();
        // SAFETY: both pointers are to our own memory.
        let pid = unsafe { libc::wait4(pid, &raw mut status, options, usage.as_mut_ptr()) };
        match pid {
            0 => return None,
            -1 if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            -1 => return None,
            pid => {
                // A traced child's stops come unasked for.
                let Some(end) = end_of(status) else { continue };
                // SAFETY: all-zero bytes are a valid rusage, which the kernel then filled.
                let usage = usage_of(unsafe { usage.assume_init_ref() });
                return Some(Reaped {
                    pid: pid.cast_unsigned(),
                    end,
                    usage,
                });
            }
        }
    }
}

fn end_of(status: c_int) -> Option<End> {
    if libc::WIFEXITED(status) {
        return Some(End::Exited(libc::WEXITSTATUS(status)));
    }
    libc::WIFSIGNALED(status).then(|| End::Killed {
        signal: libc::WTERMSIG(status),
        core: libc::WCOREDUMP(status),
    })
}

fn usage_of(usage: &rusage) -> Usage {
    let count = |value: i64| u64::try_from(value).unwrap_or(0);
    Usage {
        // In units of 1024 bytes on Linux.
        peak_rss_bytes: count(usage.ru_maxrss).saturating_mul(1024),
        minor_faults: count(usage.ru_minflt),
        major_faults: count(usage.ru_majflt),
        voluntary_switches: count(usage.ru_nvcsw),
        involuntary_switches: count(usage.ru_nivcsw),
        user_ns: nanoseconds(usage.ru_utime),
        system_ns: nanoseconds(usage.ru_stime),
    }
}

fn nanoseconds(time: timeval) -> u64 {
    let whole = Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0));
    let part = Duration::from_micros(u64::try_from(time.tv_usec).unwrap_or(0));
    u64::try_from((whole + part).as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
