use super::*;

const FREE: Confinement = Confinement {
    seccomp: false,
    no_new_privs: false,
};
const FILTERED: Confinement = Confinement {
    seccomp: true,
    no_new_privs: false,
};

fn errno<T>(code: i32) -> io::Result<T> {
    Err(io::Error::from_raw_os_error(code))
}

#[test]
fn kernels() {
    for (release, status) in [
        ("6.1.0-13-cloud-amd64", Status::Ok),
        ("6.18.44", Status::Ok),
        ("7.0-rc1", Status::Ok),
        ("5.15.0", Status::Fail),
        ("6.0.9", Status::Fail),
        ("", Status::Warn),
        ("6", Status::Warn),
        ("99999999999.1", Status::Warn),
    ] {
        assert_eq!(kernel(release).status, status, "{release}");
    }
}

#[test]
fn capabilities() {
    let with = |bits: u64| privileges(&format!("Name:\tx\nCapEff:\t{bits:016x}\n"));
    assert_eq!(with(0).status, Status::Fail);
    assert_eq!(with(1 << 39).found, "only CAP_BPF");
    assert_eq!(with(1 << 39 | 1 << 38).status, Status::Ok);
    assert_eq!(with(1 << 21).status, Status::Ok);
    assert_eq!(privileges("nothing").status, Status::Warn);
}

#[test]
fn refusals_say_what_to_do() {
    let root = bpf("bpf maps", errno(libc::EPERM), FREE);
    assert!(root.status == Status::Fail && root.todo.unwrap().contains("sudo"));
    let docker = bpf("bpf maps", errno(libc::EPERM), FILTERED);
    assert!(docker.todo.unwrap().contains("--cap-add"));
    let absent = bpf("bpf maps", errno(libc::ENOSYS), FREE);
    assert!(absent.todo.unwrap().contains("CONFIG_BPF_SYSCALL"));
    assert_eq!(multi(Ok(false)).status, Status::Warn);
    assert_eq!(hardware(errno(libc::ENOENT)).status, Status::Warn);
    assert_eq!(types(Err(BtfError::NoMember("pid"))).status, Status::Warn);
}

#[test]
fn lockdown_modes() {
    let mode = |text: &str| lockdown(Ok(text.to_owned()));
    assert_eq!(mode("[none] integrity confidentiality").found, "none");
    assert_eq!(
        mode("none integrity [confidentiality]").status,
        Status::Warn
    );
    assert_eq!(lockdown(errno(libc::ENOENT)).status, Status::Ok);
}

#[test]
fn confinement_is_read() {
    assert_eq!(
        confinement("NoNewPrivs:\t0\nSeccomp:\t2\nSeccomp_filters:\t1\n"),
        FILTERED
    );
    assert_eq!(confinement("NoNewPrivs:\t0\nSeccomp:\t0\n"), FREE);
    assert_eq!(container(Some("Docker"), FILTERED).status, Status::Warn);
    assert_eq!(container(None, FREE).status, Status::Ok);
}

#[test]
fn every_row_that_is_not_ok_says_what_to_do() {
    let rows = preflight();
    assert!(rows.len() > 12);
    for row in rows {
        assert_eq!(row.status != Status::Ok, row.todo.is_some(), "{row:?}");
        assert!(!row.found.contains('\n'), "{row:?}");
    }
}
