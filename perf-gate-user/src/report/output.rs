//! Where a machine-readable record goes, so that it is whole or not there.
//!
//! A regular file is written without a name (`O_TMPFILE`) in the folder of its target and takes the
//! target's place by link and rename once it is complete: a reader never sees half a record, and
//! nothing is left behind when the supervisor dies, even by SIGKILL. Where the file system knows no
//! nameless files a hidden one beside the target does the same, short of SIGKILL. Pipes, devices and
//! sockets cannot be replaced and are written directly. Standard output belongs to the watched
//! command while it runs, so a record for `-` waits in memory that is not the process's own
//! (`memfd`) and is copied out at the end, not in between the command's lines.

use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{self, BufWriter, Write},
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd},
        unix::{
            ffi::OsStrExt,
            fs::{OpenOptionsExt, fchown},
        },
    },
    path::{Path, PathBuf},
};

#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    #[error(
        "cannot write to {path}: {source}; give a file in an existing folder that you may write to, or - for standard output"
    )]
    Open { path: String, source: io::Error },
    #[error(
        "the record for {path} could not be written: {source}; it is incomplete or missing, so this run cannot be vouched for"
    )]
    Write { path: String, source: io::Error },
}

impl OutputError {
    /// A target that cannot be opened is wrong usage, found before the command starts; a record
    /// that cannot be written later means that the run cannot be vouched for.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Open { .. } => 64,
            Self::Write { .. } => crate::judge::CANNOT_VOUCH,
        }
    }
}

enum Finish {
    /// Written in place.
    Nothing,
    /// Copied to standard output.
    ToStdout,
    /// Given the target's name; `hidden` is its present one, if it has any.
    Rename {
        target: PathBuf,
        hidden: Option<PathBuf>,
    },
}

/// An open target. Dropped without [`Output::commit`] it leaves nothing behind.
pub struct Output {
    path: PathBuf,
    to: BufWriter<File>,
    finish: Finish,
    /// The first failure; later writes are pointless and would hide it.
    failed: Option<io::Error>,
}

impl Output {
    /// Opens `path`; `-` is standard output. Nothing exists under that name until [`Output::commit`].
    pub fn open(path: &Path) -> Result<Self, OutputError> {
        let opened = if path == Path::new("-") {
            memory().map(|file| (file, Finish::ToStdout))
        } else {
            open_path(path)
        };
        match opened {
            Ok((file, finish)) => Ok(Self {
                path: path.to_owned(),
                to: BufWriter::with_capacity(32 << 10, file),
                finish,
                failed: None,
            }),
            Err(source) => Err(OutputError::Open {
                path: shown(path),
                source,
            }),
        }
    }

    /// Gives a file that perf-gate creates to the user on whose behalf it runs as root.
    pub fn set_owner(&self, uid: u32, gid: u32) {
        if matches!(self.finish, Finish::Rename { .. }) {
            // Without it the record is still complete and readable; not worth failing for.
            let _ = fchown(self.to.get_ref(), Some(uid), Some(gid));
        }
    }

    /// Writes through the buffer; a failure is kept and returned by the next [`Output::check`] or
    /// [`Output::commit`], so that a broken record never stops the watched command.
    pub fn put(&mut self, line: impl FnOnce(&mut dyn Write) -> io::Result<()>) {
        if self.failed.is_none() {
            self.failed = line(&mut self.to).err();
        }
    }

    /// Flushes, so that a full disk or a closed pipe shows now.
    pub fn check(&mut self) -> Result<(), OutputError> {
        self.put(|to| to.flush());
        match self.failed.take() {
            None => Ok(()),
            Some(source) => Err(self.write_error(source)),
        }
    }

    /// Completes the record and gives it its name.
    pub fn commit(mut self) -> Result<(), OutputError> {
        self.check()?;
        let finish = std::mem::replace(&mut self.finish, Finish::Nothing);
        let done = match finish {
            Finish::Nothing => Ok(()),
            Finish::ToStdout => copy_to_stdout(self.to.get_ref()),
            Finish::Rename { target, hidden } => give_name(self.to.get_ref(), &target, hidden),
        };
        done.map_err(|source| self.write_error(source))
    }

    fn write_error(&self, source: io::Error) -> OutputError {
        OutputError::Write {
            path: shown(&self.path),
            source,
        }
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if let Finish::Rename {
            hidden: Some(hidden),
            ..
        } = &self.finish
        {
            let _ = fs::remove_file(hidden);
        }
    }
}

fn shown(path: &Path) -> String {
    match path.to_str() {
        Some("-") => "standard output".to_owned(),
        _ => super::text::clean(&path.to_string_lossy()).into_owned(),
    }
}

fn memory() -> io::Result<File> {
    // SAFETY: the name is a C string that outlives the call; no other memory is involved.
    let fd = unsafe { libc::memfd_create(c"perf-gate-record".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call above returned this descriptor to us alone.
    Ok(File::from(unsafe { OwnedFd::from_raw_fd(fd) }))
}

fn open_path(path: &Path) -> io::Result<(File, Finish)> {
    match fs::metadata(path) {
        Ok(meta) if meta.is_dir() => Err(io::Error::from_raw_os_error(libc::EISDIR)),
        Ok(meta) if !meta.is_file() => {
            let file = OpenOptions::new().write(true).open(path)?;
            Ok((file, Finish::Nothing))
        }
        Ok(_) => {
            // The user's right to write is the file's, not only the folder's.
            OpenOptions::new().write(true).open(path)?;
            // Through a symbolic link, what it points to is replaced, not the link.
            beside(fs::canonicalize(path)?)
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound && !is_link(path) => beside(path.to_owned()),
        Err(e) => Err(e),
    }
}

fn is_link(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

/// A file in the folder of `target` that will take its place.
fn beside(target: PathBuf) -> io::Result<(File, Finish)> {
    if target.file_name().is_none() || target.as_os_str().as_bytes().ends_with(b"/") {
        return Err(io::Error::from_raw_os_error(libc::EISDIR));
    }
    let mut options = OpenOptions::new();
    options.write(true).mode(0o644);
    let nameless = options
        .clone()
        .custom_flags(libc::O_TMPFILE)
        .open(folder(&target));
    match nameless {
        Ok(file) => Ok((
            file,
            Finish::Rename {
                target,
                hidden: None,
            },
        )),
        Err(e) if unknown_flag(&e) => {
            let hidden = hidden_name(&target);
            let file = options.create_new(true).open(&hidden)?;
            let hidden = Some(hidden);
            Ok((file, Finish::Rename { target, hidden }))
        }
        Err(e) => Err(e),
    }
}

/// How file systems say that they have no nameless files.
fn unknown_flag(e: &io::Error) -> bool {
    matches!(
        e.raw_os_error(),
        Some(libc::EOPNOTSUPP | libc::EISDIR | libc::EINVAL | libc::ENOENT)
    )
}

fn folder(target: &Path) -> &Path {
    match target.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

fn hidden_name(target: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(target.file_name().unwrap_or_default());
    name.push(format!(".{}.partial", std::process::id()));
    target.with_file_name(name)
}

fn give_name(file: &File, target: &Path, hidden: Option<PathBuf>) -> io::Result<()> {
    let hidden = match hidden {
        Some(hidden) => hidden,
        None => {
            let hidden = hidden_name(target);
            let own = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
            let follow = nix::fcntl::AtFlags::AT_SYMLINK_FOLLOW;
            nix::unistd::linkat(
                nix::fcntl::AT_FDCWD,
                &own,
                nix::fcntl::AT_FDCWD,
                &hidden,
                follow,
            )?;
            hidden
        }
    };
    fs::rename(&hidden, target).inspect_err(|_| {
        let _ = fs::remove_file(&hidden);
    })
}

fn copy_to_stdout(mut file: &File) -> io::Result<()> {
    use std::io::{Read, Seek};
    file.rewind()?;
    let mut out = io::stdout().lock();
    let mut chunk = [0; 16 << 10];
    loop {
        match file.read(&mut chunk)? {
            0 => return out.flush(),
            n => out.write_all(&chunk[..n])?,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(dir)
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn appears_only_when_committed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.ndjson");
        let mut out = Output::open(&path).unwrap();
        out.put(|w| w.write_all(b"one\n"));
        out.check().unwrap();
        assert!(entries(dir.path()).is_empty());
        drop(out);
        assert!(entries(dir.path()).is_empty());
        let mut out = Output::open(&path).unwrap();
        out.put(|w| w.write_all(b"two\n"));
        out.commit().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two\n");
        assert_eq!(entries(dir.path()), ["run.ndjson"]);
    }

    #[test]
    fn replaces_what_a_link_points_to() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        fs::write(&file, "old").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let mut out = Output::open(&link).unwrap();
        out.put(|w| w.write_all(b"new"));
        assert_eq!(fs::read(&file).unwrap(), b"old");
        out.commit().unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"new");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(entries(dir.path()), ["file", "link"]);
    }

    #[test]
    fn a_hidden_file_does_where_nameless_ones_are_unknown() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("x");
        let hidden = hidden_name(&target);
        let open = || Output {
            path: target.clone(),
            to: BufWriter::new(File::create(&hidden).unwrap()),
            finish: Finish::Rename {
                target: target.clone(),
                hidden: Some(hidden.clone()),
            },
            failed: None,
        };
        drop(open());
        assert!(entries(dir.path()).is_empty());
        open().commit().unwrap();
        assert_eq!(entries(dir.path()), ["x"]);
    }

    #[test]
    fn refuses_up_front() {
        let dir = tempfile::tempdir().unwrap();
        let dangling = dir.path().join("dangling");
        std::os::unix::fs::symlink(dir.path().join("no/where"), &dangling).unwrap();
        for path in [
            dir.path(),
            &dir.path().join("no/such/file"),
            &dir.path().join("new/"),
            &dangling,
            Path::new(""),
        ] {
            let error = Output::open(path).err().expect("must not open");
            assert_eq!(error.exit_code(), 64, "{path:?}");
            assert_eq!(error.to_string().lines().count(), 1);
        }
        assert_eq!(entries(dir.path()), ["dangling"]);
    }

    #[test]
    fn a_full_disk_shows_in_check() {
        let mut out = Output::open(Path::new("/dev/full")).unwrap();
        out.put(|w| w.write_all(b"line\n"));
        let error = out.check().unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains("/dev/full"), "{error}");
    }

    #[test]
    fn a_closed_pipe_shows_in_check() {
        let (reader, writer) = nix::unistd::pipe().unwrap();
        let path = PathBuf::from(format!("/proc/self/fd/{}", writer.as_raw_fd()));
        let mut out = Output::open(&path).unwrap();
        drop(reader);
        out.put(|w| w.write_all(b"line\n"));
        let error = out.check().unwrap_err();
        assert!(error.to_string().contains("roken pipe"), "{error}");
    }
}
