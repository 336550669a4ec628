//! What the marking side of the protocol needs: a file that the child owns, so that it may set the
//! file's times (which is how a marker travels), and a number that only this run's processes know, so
//! that nobody's ordinary file times are taken for markers.

use nix::unistd::{Gid, Uid, mkdtemp};
use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, Read as _},
    path::{Path, PathBuf},
};

/// Names the file and the number to the marking helper, as `PATH:NUMBER`.
pub const VARIABLE: &str = "PERF_GATE_MARK";

/// The file, for as long as this lives.
#[derive(Debug)]
pub struct MarkFile {
    dir: PathBuf,
    pub nonce: u64,
}

impl MarkFile {
    /// # Errors
    /// When no file can be made in the directory for temporary files.
    pub fn make(owner: Option<(u32, u32)>) -> io::Result<Self> {
        let mut random = [0; 4];
        File::open("/dev/urandom")?.read_exact(&mut random)?;
        // Even so that 0 is never used; below 2^30, which V8 keeps as a small integer everywhere.
        let nonce = u64::from(u32::from_ne_bytes(random) & 0x3fff_fffe) | 1;
        let dir = mkdtemp(&std::env::temp_dir().join("perf-gate-XXXXXX"))?;
        let made = Self { dir, nonce };
        File::create(made.path())?;
        if let Some((uid, gid)) = owner {
            let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
            nix::unistd::chown(&made.path(), uid, gid)?;
            nix::unistd::chown(&made.dir, uid, gid)?;
        }
        Ok(made)
    }

    /// The folder that it lies in, which is the program's user's.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    fn path(&self) -> PathBuf {
        self.dir.join("mark")
    }

    /// What to remove, in this order.
    #[must_use]
    pub fn paths(&self) -> [PathBuf; 2] {
        [self.path(), self.dir.clone()]
    }

    /// What to set in the child's environment.
    #[must_use]
    pub fn variable(&self) -> (OsString, OsString) {
        let mut value = self.path().into_os_string();
        value.push(format!(":{}", self.nonce));
        (VARIABLE.into(), value)
    }
}

impl Drop for MarkFile {
    fn drop(&mut self) {
        // With whatever was put beside it: pipes, questions.
        let _ = fs::remove_dir_all(&self.dir);
    }
}
