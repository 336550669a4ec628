//! Finding the command, and saying in words why it did not run.
//!
//! The search is execvp's: a name with a slash is taken as it is, any other is tried in each
//! directory of the *child's* PATH, by the child, as the child's user and in the child's directory;
//! "permission denied" is remembered and the search goes on. One difference is deliberate: a file
//! that the kernel refuses as "not a program" is not handed to /bin/sh, because an empty or damaged
//! `node` must not turn into a shell script that passes.

use std::{
    ffi::{OsStr, OsString},
    io,
    os::unix::{
        ffi::OsStrExt,
        fs::{MetadataExt, PermissionsExt},
    },
    path::{Path, PathBuf},
};

use super::launch::LaunchError;

/// What the C library searches when PATH is not set.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// Every path to try, in order.
pub(super) fn candidates(command: &OsStr, path: Option<&OsStr>) -> Vec<PathBuf> {
    if command.is_empty() || command.as_bytes().contains(&b'/') {
        return vec![PathBuf::from(command)];
    }
    std::env::split_paths(path.unwrap_or(OsStr::new(DEFAULT_PATH)))
        // An empty entry means the current directory.
        .map(|dir| match dir.as_os_str().is_empty() {
            true => Path::new(".").join(command),
            false => dir.join(command),
        })
        .collect()
}

/// Turns the errno of the last candidate tried into an error that says what to do.
pub(super) fn explain(
    command: &OsStr,
    candidates: &[PathBuf],
    index: usize,
    errno: i32,
    cwd: Option<&Path>,
    user: Option<&str>,
) -> LaunchError {
    // Relative paths were tried in the child's directory.
    let from_child = |path: &Path| cwd.unwrap_or(Path::new("")).join(path);
    let refused = |path: &Path, why: String| LaunchError::NotExecutable {
        path: path.to_owned(),
        why,
    };
    let not_found = || LaunchError::NotFound {
        command: command.to_owned(),
        hint: not_found_hint(command),
    };
    if is_absence(errno) {
        // A file that is there and yet "does not exist" lacks its interpreter.
        return match candidates.iter().find(|c| from_child(c).is_file()) {
            Some(path) => refused(
                path,
                "the interpreter or loader that it names is missing; install that, or check its \
                 first line (#!) or architecture"
                    .into(),
            ),
            None => not_found(),
        };
    }
    let mut rest = candidates.iter().skip(index);
    let path = match errno {
        // A directory in PATH that may not be entered says nothing about the command.
        libc::EACCES if candidates.len() > 1 => rest.find(|path| from_child(path).exists()),
        _ => rest.next(),
    };
    let Some(path) = path else {
        return not_found();
    };
    let meta = std::fs::metadata(from_child(path)).ok();
    let why = match (errno, meta) {
        (libc::EACCES, Some(m)) if m.is_dir() => "it is a directory; name a program in it".into(),
        (libc::EACCES, Some(m)) if m.permissions().mode() & 0o111 == 0 => {
            "it has no execute permission; chmod +x it, or run it through its interpreter".into()
        }
        (libc::EACCES, _) => match user {
            Some(user) => format!(
                "permission denied for {user}, as whom it would run; make it and its directories \
                 accessible, or pass --as-root"
            ),
            None => "permission denied; check its directories and a noexec mount".into(),
        },
        (libc::ENOEXEC, Some(m)) if m.size() == 0 => "the file is empty; install it again".into(),
        (libc::ENOEXEC, _) => "not a program for this machine (damaged, another architecture, or \
             a script without a #! line); install it again, or run a script through its \
             interpreter"
            .into(),
        _ => reason(errno),
    };
    refused(path, why)
}

/// Errors after which execvp tries the next directory, permission aside.
pub(super) const fn is_absence(errno: i32) -> bool {
    matches!(
        errno,
        libc::ENOENT | libc::ENOTDIR | libc::ESTALE | libc::ENODEV | libc::ETIMEDOUT
    )
}

fn not_found_hint(command: &OsStr) -> &'static str {
    match command.as_bytes().contains(&b'/') {
        _ if command.is_empty() => "its name is empty: is a variable unset?",
        true => "check the path",
        false => "check the spelling and PATH, or give its full path",
    }
}

fn reason(errno: i32) -> String {
    format!(
        "{}; run it without perf-gate to see whether it works at all",
        io::Error::from_raw_os_error(errno)
    )
}

/// A value of an environment list; the last one wins, as in most programs that read one.
pub(super) fn lookup<'a>(env: &'a [(OsString, OsString)], name: &str) -> Option<&'a OsStr> {
    env.iter()
        .rev()
        .find(|(n, _)| n == name)
        .map(|(_, value)| value.as_os_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(command: &str, path: Option<&str>) -> Vec<String> {
        candidates(OsStr::new(command), path.map(OsStr::new))
            .into_iter()
            .map(|p| p.display().to_string())
            .collect()
    }

    #[test]
    fn searches_like_execvp() {
        assert_eq!(list("node", Some("/a:/b")), ["/a/node", "/b/node"]);
        assert_eq!(list("node", Some(":/b:")), ["./node", "/b/node", "./node"]);
        assert_eq!(list("node", None), ["/bin/node", "/usr/bin/node"]);
        assert_eq!(list("./node", Some("/a")), ["./node"]);
        assert_eq!(list("a/b", Some("/a")), ["a/b"]);
        assert_eq!(list("", Some("/a")), [""]);
    }
}
