//! Where resolved probe plans and proofs are kept between runs: `PERF_GATE_CACHE_DIR` if set, for root
//! `/var/cache/perf-gate`, else `$XDG_CACHE_HOME` or `~/.cache`. Under sudo nothing is put into the
//! user's home, where root's files would be in the way; and root believes no directory that somebody
//! else can write to, since a forged proof would make a blind lane look sound.

use std::{
    env, fs, io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _},
    path::PathBuf,
};

const ROOTS: &str = "/var/cache/perf-gate";

fn wanted() -> Option<PathBuf> {
    if let Some(dir) = env::var_os("PERF_GATE_CACHE_DIR").filter(|d| !d.is_empty()) {
        return Some(dir.into());
    }
    if nix::unistd::geteuid().is_root() {
        return Some(ROOTS.into());
    }
    let base = env::var_os("XDG_CACHE_HOME")
        .filter(|d| !d.is_empty())
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache")))?;
    Some(base.join("perf-gate"))
}

/// The directory, made if need be; `None`, with a log line, when it cannot be used.
pub fn find() -> Option<PathBuf> {
    let dir = wanted()?;
    let usable = || -> io::Result<()> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(&dir)?;
        let meta = fs::metadata(&dir)?;
        let others = meta.mode() & 0o022 != 0 || meta.uid() != nix::unistd::geteuid().as_raw();
        if others {
            return Err(io::Error::other("somebody else may write to it"));
        }
        Ok(())
    };
    match usable() {
        Ok(()) => Some(dir),
        Err(e) => {
            log::warn!(
                "nothing is kept in {}: {e}; every run resolves and proves anew",
                dir.display()
            );
            None
        }
    }
}
