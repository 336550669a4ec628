//! Whose program it is: under sudo, the person's who typed the command, not root's.
//!
//! Observing needs privilege, the program under test does not, and a test suite that runs as root
//! is another test suite (files it creates, permissions it ignores, HOME it reads). So under sudo
//! the child becomes the invoking user again, with that user's groups and home, and with no way
//! back: the drop itself is done and verified between fork and exec (see `child`). Elsewhere, and
//! with `--as-root`, the identity is left alone.
//!
//! PATH needs care. sudo replaces it (`secure_path`), which hides a node that lives in the user's
//! home. The user's own PATH is still in sudo's environment, which root can read; it is used unless
//! somebody chose a PATH after sudo did, be it on sudo's command line or in a script in between.

use std::{
    ffi::{OsStr, OsString},
    io,
    os::unix::ffi::OsStrExt,
    path::PathBuf,
};

use nix::unistd::{Gid, Uid, User, getgrouplist};
use procfs::process::Process;

/// sudo, a shell, a wrapper or two: how far up the ancestors sudo is looked for.
const MAX_ANCESTORS: usize = 32;

/// Who the child runs as.
#[derive(Clone, Debug, Default)]
pub struct Identity {
    /// `None`: as perf-gate itself.
    pub(super) user: Option<Invoker>,
}

/// The user who called sudo.
#[derive(Clone, Debug)]
pub(super) struct Invoker {
    pub uid: Uid,
    pub gid: Gid,
    pub groups: Vec<Gid>,
    pub name: String,
    pub home: PathBuf,
    pub shell: PathBuf,
    /// The PATH that the user had before sudo.
    pub path: Option<OsString>,
}

#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    #[error(
        "cannot tell who called sudo: {name}={value:?} is not a user or group number; call \
         perf-gate through sudo itself, or pass --as-root"
    )]
    BadId { name: &'static str, value: OsString },
    #[error(
        "cannot run the program as the user who called sudo: uid {uid} is not in the user \
         database; add the user, or pass --as-root"
    )]
    UnknownUser { uid: Uid },
    #[error(
        "cannot read the {what} of uid {uid} ({source}); repair the user database, or pass --as-root"
    )]
    Database {
        what: &'static str,
        uid: Uid,
        source: io::Error,
    },
    #[error(
        "perf-gate is installed setuid root, which would let any user run anything as root; remove \
         the bit (chmod u-s) and use sudo or file capabilities"
    )]
    Setuid,
}

impl Identity {
    /// As perf-gate itself.
    #[must_use]
    pub fn current() -> Self {
        Self::default()
    }

    /// The invoking user under sudo (unless `as_root`), perf-gate's own identity otherwise.
    ///
    /// # Errors
    /// When sudo's variables or the user database do not lead to a user, and when perf-gate is
    /// setuid root: its environment, SUDO_UID included, is then anybody's to choose.
    pub fn resolve(as_root: bool) -> Result<Self, IdentityError> {
        Self::decide(as_root, Uid::current(), Uid::effective(), &|name| {
            std::env::var_os(name)
        })
    }

    fn decide(
        as_root: bool,
        real: Uid,
        effective: Uid,
        var: &dyn Fn(&str) -> Option<OsString>,
    ) -> Result<Self, IdentityError> {
        if effective.is_root() && !real.is_root() {
            return Err(IdentityError::Setuid);
        }
        if as_root || !effective.is_root() {
            return Ok(Self::current());
        }
        let Some(uid) = number("SUDO_UID", var)?.map(Uid::from_raw) else {
            return Ok(Self::current());
        };
        if uid.is_root() {
            return Ok(Self::current());
        }
        let user = User::from_uid(uid)
            .map_err(|e| database("entry", uid, e))?
            .ok_or(IdentityError::UnknownUser { uid })?;
        let gid = number("SUDO_GID", var)?.map_or(user.gid, Gid::from_raw);
        let groups = match std::ffi::CString::new(user.name.as_str()) {
            Ok(name) => getgrouplist(&name, gid).map_err(|e| database("groups", uid, e))?,
            Err(_) => return Err(IdentityError::UnknownUser { uid }),
        };
        Ok(Self {
            user: Some(Invoker {
                uid,
                gid,
                groups,
                name: user.name,
                home: user.dir,
                shell: match user.shell.as_os_str().is_empty() {
                    true => "/bin/sh".into(),
                    false => user.shell,
                },
                path: path_before_sudo(var("PATH").as_deref()),
            }),
        })
    }

    /// User and group that the child changes to, if it does.
    #[must_use]
    pub fn ids(&self) -> Option<(u32, u32)> {
        self.user
            .as_ref()
            .map(|user| (user.uid.as_raw(), user.gid.as_raw()))
    }

    /// The name of the user that the child becomes; `None` when nothing changes.
    #[must_use]
    pub fn user_name(&self) -> Option<&str> {
        self.user.as_ref().map(|user| user.name.as_str())
    }

    /// Whether the child runs as somebody else than perf-gate.
    #[must_use]
    pub const fn changes(&self) -> bool {
        self.user.is_some()
    }

    /// The child's environment, made from perf-gate's own.
    ///
    /// What sudo set for root is set for the user; what only sudo's command may know (`SUDO_*`) and
    /// what pointed at root's things (MAIL) is dropped; the rest is passed on.
    #[must_use]
    pub fn env_for_child(
        &self,
        own: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Vec<(OsString, OsString)> {
        let Some(user) = &self.user else {
            return own.into_iter().collect();
        };
        let mut set: Vec<(&str, OsString)> = vec![
            ("HOME", user.home.clone().into()),
            ("USER", user.name.clone().into()),
            ("LOGNAME", user.name.clone().into()),
            ("SHELL", user.shell.clone().into()),
        ];
        if let Some(path) = &user.path {
            set.push(("PATH", path.clone()));
        }
        let mut env: Vec<_> = own
            .into_iter()
            .filter(|(name, _)| {
                name != "MAIL"
                    && !name.as_bytes().starts_with(b"SUDO_")
                    && set.iter().all(|(own, _)| name != own)
            })
            .collect();
        env.extend(set.into_iter().map(|(name, value)| (name.into(), value)));
        env
    }
}

fn database(what: &'static str, uid: Uid, errno: nix::Error) -> IdentityError {
    IdentityError::Database {
        what,
        uid,
        source: errno.into(),
    }
}

/// A uid or gid; all ones is no id but the "leave unchanged" of the calls that would take it.
fn number(
    name: &'static str,
    var: &dyn Fn(&str) -> Option<OsString>,
) -> Result<Option<u32>, IdentityError> {
    let Some(value) = var(name) else {
        return Ok(None);
    };
    match value.to_str().and_then(|text| text.parse().ok()) {
        Some(id) if id != u32::MAX => Ok(Some(id)),
        _ => Err(IdentityError::BadId { name, value }),
    }
}

/// The PATH in sudo's own environment, unless ours was chosen after sudo's.
fn path_before_sudo(ours: Option<&OsStr>) -> Option<OsString> {
    // `started` is the ancestor (or self) that sudo started: its PATH is what sudo set.
    let mut started = Process::myself().ok()?;
    for _ in 0..MAX_ANCESTORS {
        let parent = Process::new(started.stat().ok()?.ppid).ok()?;
        if is_sudo(&parent) {
            let chosen = |words: Vec<String>| words.iter().any(|word| word.contains("PATH="));
            if chosen(parent.cmdline().ok()?) || path_of(&started).as_deref() != ours {
                return None;
            }
            return path_of(&parent);
        }
        started = parent;
    }
    None
}

fn is_sudo(process: &Process) -> bool {
    let name = process.exe().ok();
    let name = name.as_deref().and_then(|exe| exe.file_name());
    name.is_some_and(|name| name == "sudo" || name == "sudo-rs")
}

fn path_of(process: &Process) -> Option<OsString> {
    process.environ().ok()?.remove(OsStr::new("PATH"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::testing;

    const NOBODY: u32 = 65534;

    fn decide(as_root: bool, vars: &[(&str, &str)]) -> Result<Identity, IdentityError> {
        let root = Uid::from_raw(0);
        Identity::decide(as_root, root, root, &|name| {
            let found = vars.iter().find(|(n, _)| *n == name);
            found.map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn only_root_under_sudo_changes_identity() {
        let sudo = [("SUDO_UID", "65534"), ("SUDO_GID", "65534")];
        assert!(decide(false, &sudo).unwrap().changes());
        assert!(!decide(true, &sudo).unwrap().changes());
        assert!(!decide(false, &[]).unwrap().changes());
        assert!(!decide(false, &[("SUDO_UID", "0")]).unwrap().changes());
        let user = Uid::from_raw(1000);
        let unprivileged = Identity::decide(false, user, user, &|_| Some("65534".into()));
        assert!(!unprivileged.unwrap().changes());
    }

    #[test]
    fn a_setuid_installation_is_refused() {
        let (user, root) = (Uid::from_raw(1000), Uid::from_raw(0));
        for as_root in [false, true] {
            let outcome = Identity::decide(as_root, user, root, &|_| None);
            assert!(matches!(outcome, Err(IdentityError::Setuid)));
        }
    }

    #[test]
    fn bad_numbers_never_fall_back_to_root() {
        for uid in ["", "-1", "root", "4294967295", "99999999999", " 1"] {
            let outcome = decide(false, &[("SUDO_UID", uid)]);
            assert!(
                matches!(outcome, Err(IdentityError::BadId { .. })),
                "{uid:?}"
            );
        }
        let gid = decide(false, &[("SUDO_UID", "65534"), ("SUDO_GID", "4294967295")]);
        assert!(matches!(gid, Err(IdentityError::BadId { .. })));
        let unknown = decide(false, &[("SUDO_UID", "4000000000")]);
        assert!(matches!(unknown, Err(IdentityError::UnknownUser { .. })));
    }

    #[test]
    fn the_environment_is_the_users() {
        let mut identity = decide(false, &[("SUDO_UID", "65534")]).unwrap();
        let user = identity.user.as_mut().unwrap();
        assert_eq!((user.uid.as_raw(), user.gid.as_raw()), (NOBODY, NOBODY));
        user.path = Some("/home/x/bin".into());
        let name = user.name.clone();
        let env = identity.env_for_child(
            [
                ("HOME", "/root"),
                ("USER", "root"),
                ("LOGNAME", "root"),
                ("MAIL", "/var/mail/root"),
                ("SUDO_COMMAND", "x"),
                ("SUDO_UID", "65534"),
                ("PATH", "/sbin"),
                ("KEPT", "yes"),
            ]
            .map(|(n, v)| (n.into(), v.into())),
        );
        let get = |wanted: &str| {
            let mut values = env.iter().filter(|(n, _)| n == wanted);
            let value = values.next().map(|(_, v)| v.to_str().unwrap().to_owned());
            assert!(values.next().is_none(), "{wanted} is there twice");
            value
        };
        assert_eq!(get("USER").as_ref(), Some(&name));
        assert_eq!(get("LOGNAME").as_ref(), Some(&name));
        assert_eq!(get("PATH").as_deref(), Some("/home/x/bin"));
        assert_eq!(get("KEPT").as_deref(), Some("yes"));
        assert_ne!(get("HOME").as_deref(), Some("/root"));
        assert!(get("SHELL").is_some());
        for gone in ["MAIL", "SUDO_COMMAND", "SUDO_UID"] {
            assert_eq!(get(gone), None);
        }
    }

    /// A copy of the shell stands in for sudo: it is called so, and it replaces PATH.
    #[test]
    fn the_path_is_the_one_before_sudo_unless_chosen_since() {
        const NAME: &str =
            "target::identity::tests::the_path_is_the_one_before_sudo_unless_chosen_since";
        if let Some(word) = testing::word()
            && word != testing::ALONE
        {
            let ours = std::env::var_os("PATH");
            let expected = (word == "before").then(|| "/before:/bin:/usr/bin".into());
            assert_eq!(path_before_sudo(ours.as_deref()), expected, "{word}");
            return;
        }
        if !testing::alone(NAME) {
            return;
        }
        let dir = testing::open_dir();
        let sudo = dir.path().join("sudo");
        std::fs::copy("/bin/sh", &sudo).unwrap();
        let set = "export PATH=/secure:/bin:/usr/bin\n";
        let run = format!("\"$TEST\" --exact {NAME} --test-threads=1");
        for (word, script, argument) in [
            ("before", format!("{set}{run}; exit $?"), ""),
            (
                "before",
                format!("{set}sh -c '{run}; exit $?'; exit $?"),
                "",
            ),
            (
                "script",
                format!("{set}sh -c 'PATH=/own:$PATH; {run}; exit $?'; exit $?"),
                "",
            ),
            ("argument", format!("{set}{run}; exit $?"), "PATH=/x"),
        ] {
            let script = testing::file(dir.path(), "script", 0o644, script.as_bytes());
            let status = std::process::Command::new(&sudo)
                .arg(script)
                .arg(argument)
                .env("PATH", "/before:/bin:/usr/bin")
                .env("TEST", std::env::current_exe().unwrap())
                .env(testing::MARK, word)
                .status()
                .unwrap();
            assert!(status.success(), "{word}");
        }
    }

    #[test]
    fn without_sudo_nothing_is_touched() {
        let own = vec![(OsString::from("SUDO_USER"), OsString::from("x"))];
        assert_eq!(Identity::current().env_for_child(own.clone()), own);
    }
}
