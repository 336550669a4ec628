//! A handle on a process that no later process can inherit. From Linux 6.15 on it also tells how the
//! process ended, even one that was not our child.

use crate::model::End;
use std::{
    io,
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd},
};

pub struct Pidfd(OwnedFd);

/// `struct pidfd_info` (include/uapi/linux/pidfd.h), first published size.
#[repr(C)]
#[derive(Default)]
struct Info {
    mask: u64,
    cgroup: u64,
    ids: [u32; 11],
    exit_code: i32,
}
const _: () = assert!(size_of::<Info>() == 64);

/// `PIDFD_INFO_EXIT`.
const INFO_EXIT: u64 = 1 << 3;
/// `_IOWR(0xFF, 11, struct pidfd_info)`.
const GET_INFO: libc::c_ulong = 0xC000_0000 | (64 << 16) | (0xFF << 8) | 11;

impl Pidfd {
    /// # Errors
    /// As `pidfd_open(2)`.
    pub fn open(pid: u32) -> io::Result<Self> {
        // SAFETY: no pointers are passed; the result is a fresh descriptor or -1.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: as above.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd as RawFd) }))
    }

    /// # Errors
    /// As `pidfd_send_signal(2)`.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        // SAFETY: a null siginfo is allowed.
        let r = unsafe {
            libc::syscall(
                libc::SYS_pidfd_send_signal,
                self.0.as_raw_fd(),
                signal,
                std::ptr::null::<libc::siginfo_t>(),
                0,
            )
        };
        if r < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    }

    /// How it ended, when it has been reaped and the kernel tells.
    #[must_use]
    pub fn ended(&self) -> Option<End> {
        let mut info = Info {
            mask: INFO_EXIT,
            ..Info::default()
        };
        // SAFETY: the request carries the size of the struct that is passed.
        let r = unsafe { libc::ioctl(self.0.as_raw_fd(), GET_INFO as _, &raw mut info) };
        if r != 0 || info.mask & INFO_EXIT == 0 {
            return None;
        }
        let status = info.exit_code;
        Some(if libc::WIFSIGNALED(status) {
            End::Killed {
                signal: libc::WTERMSIG(status),
                core: libc::WCOREDUMP(status),
            }
        } else {
            End::Exited(libc::WEXITSTATUS(status))
        })
    }
}

/// # Errors
/// As `kill(2)`.
pub fn kill(pid: u32, signal: i32) -> io::Result<()> {
    // SAFETY: no memory is involved.
    if unsafe { libc::kill(pid as libc::pid_t, signal) } < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}
