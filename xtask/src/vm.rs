//! `vm`: the same binary on other kernels.
//!
//! What a kernel offers decides which way perf-gate attaches, so the oldest supported one and a recent one
//! are booted for real: Debian's cloud kernels in an emulated machine (no KVM, no root, no disk image),
//! whose whole world is an initramfs with busybox, the release binary, one node and the shared libraries
//! that those name. The guest prints marked sections on its serial line; the host compares what perf-gate
//! counted with the lines of `--trace-gc` of the same run.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::error::{Error, FileContext, Result, ignore_missing};
use crate::nodes;
use crate::run::{capture, foreign, run, target_dir, which, workspace};
use crate::test;

/// Kernel line and Debian's package that always names its newest build.
const KERNELS: &[(&str, &str)] = &[
    ("6.1", "linux-image-cloud-amd64"),
    ("6.12", "linux-image-6.12-cloud-amd64"),
];
const PACKAGES: &str = "qemu-system-x86 busybox-static cpio";
const NODE: &str = "22.23.5";
const DEADLINE: Duration = Duration::from_secs(600);

#[derive(clap::Args)]
pub struct Options {
    /// Kernel line to boot; all by default
    #[arg(long, value_parser = ["6.1", "6.12"])]
    kernel: Option<String>,
    /// Node version to watch
    #[arg(long, default_value = NODE)]
    node: String,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            kernel: None,
            node: NODE.to_owned(),
        }
    }
}

/// The first program that is needed here and not there.
pub fn missing_tool() -> Option<&'static str> {
    [
        "qemu-system-x86_64",
        "busybox",
        "cpio",
        "apt-get",
        "dpkg-deb",
        "ldd",
    ]
    .into_iter()
    .find(|tool| which(tool).is_none())
}

pub fn what_to_install(tool: &str) -> String {
    format!("no {tool} in PATH; on Debian 12: apt-get install {PACKAGES}")
}

pub fn vm(options: &Options) -> Result<()> {
    if let Some(tool) = missing_tool() {
        return Err(Error::told(what_to_install(tool)));
    }
    test::build(None)?;
    let node = nodes::fetch(&options.node)?;
    let dir = target_dir().join("vm");
    let initramfs = initramfs(&dir, &node)?;
    let mut failed = Vec::new();
    for (line, package) in KERNELS {
        if options
            .kernel
            .as_deref()
            .is_some_and(|wanted| wanted != *line)
        {
            continue;
        }
        let kernel = kernel(line, package)?;
        let log = dir.join(format!("{line}.log"));
        println!("== Linux {line} (console in {})", log.display());
        if let Err(why) = boot(&kernel, &initramfs, &log).and_then(|()| judge(&log)) {
            println!("FAILED: {why}");
            failed.push(*line);
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    Err(Error::told(format!(
        "not as it should be on Linux {}",
        failed.join(", ")
    )))
}

/// The newest kernel of a line, unpacked from its package and kept beside the Node builds.
fn kernel(line: &str, package: &str) -> Result<PathBuf> {
    let cache = nodes::cache()?.join("../kernels");
    let kept = cache.join(format!("vmlinuz-{line}"));
    if kept.is_file() {
        return Ok(kept);
    }
    let shown = capture(foreign("apt-cache").args(["show", "--no-all-versions", package]))?;
    let image = shown
        .lines()
        .find_map(|line| line.strip_prefix("Depends: ")?.split([' ', ',']).next())
        .ok_or_else(|| {
            Error::told(format!(
                "apt knows no {package}; run apt-get update on Debian 12"
            ))
        })?;
    let aside = cache.join(format!(".fetch-{line}"));
    fs::create_dir_all(&aside).file("create", &aside)?;
    println!("fetching {image}");
    run(foreign("apt-get")
        .current_dir(&aside)
        .args(["download", "-qq", "-o", "APT::Sandbox::User=root", image])
        .stdout(Stdio::null()))?;
    for entry in fs::read_dir(&aside).file("read", &aside)?.flatten() {
        if entry.path().extension().is_some_and(|ext| ext == "deb") {
            run(foreign("dpkg-deb")
                .arg("-x")
                .arg(entry.path())
                .arg(aside.join("root")))?;
        }
    }
    let release = image.trim_start_matches("linux-image-");
    let unpacked = aside.join("root/boot").join(format!("vmlinuz-{release}"));
    fs::rename(&unpacked, &kept).file("move", unpacked)?;
    // Best effort: the modules that nobody needs.
    let _ = fs::remove_dir_all(&aside);
    Ok(kept)
}

/// The guest's file tree as a cpio archive.
fn initramfs(dir: &Path, node: &Path) -> Result<PathBuf> {
    let root = dir.join("root");
    fs::remove_dir_all(&root)
        .or_else(ignore_missing)
        .file("remove", &root)?;
    for folder in [
        "bin",
        "proc",
        "sys",
        "dev",
        "lib/x86_64-linux-gnu",
        "lib64",
        "usr",
    ] {
        let folder = root.join(folder);
        fs::create_dir_all(&folder).file("create", &folder)?;
    }
    let usr_lib = root.join("usr/lib");
    symlink("../lib", &usr_lib).file("link", usr_lib)?;
    let busybox = which("busybox").ok_or_else(|| Error::told("busybox vanished from PATH"))?;
    for (from, name) in [
        (&busybox, "busybox"),
        (&test::binary(), "perf-gate"),
        (&node.to_path_buf(), "node"),
    ] {
        let to = root.join("bin").join(name);
        fs::copy(from, &to).file("copy to", &to)?;
        fs::set_permissions(&to, fs::Permissions::from_mode(0o755)).file("mark executable", &to)?;
        copy_libraries(from, &root)?;
    }
    for name in ["init", "gc.mjs"] {
        let to = root.join(name);
        fs::copy(workspace().join("xtask/vm").join(name), &to).file("copy to", &to)?;
        fs::set_permissions(&to, fs::Permissions::from_mode(0o755)).file("mark executable", &to)?;
    }
    let archive = dir.join("initramfs.cpio");
    let out = File::create(&archive).file("create", &archive)?;
    run(foreign("sh")
        .current_dir(&root)
        .args([
            "-c",
            "find . | cpio --quiet --create --format=newc --owner=0:0",
        ])
        .stdout(out))?;
    Ok(archive)
}

/// What the loader would map, at the same paths.
fn copy_libraries(program: &Path, root: &Path) -> Result<()> {
    // ldd calls a static program an error, and that one needs nothing.
    let listed = foreign("ldd")
        .arg(program)
        .output()
        .map_err(|source| Error::Start {
            program: "ldd".to_owned(),
            source,
        })?;
    for word in String::from_utf8_lossy(&listed.stdout).split_whitespace() {
        if let Some(inside) = word.strip_prefix('/') {
            let to = root.join(inside);
            if let Some(folder) = to.parent() {
                fs::create_dir_all(folder).file("create", folder)?;
            }
            fs::copy(word, &to).file("copy to", &to)?;
        }
    }
    Ok(())
}

fn boot(kernel: &Path, initramfs: &Path, log: &Path) -> Result<()> {
    let mut command = Command::new("qemu-system-x86_64");
    command
        .args([
            "-accel",
            "tcg,thread=multi",
            "-cpu",
            "max",
            "-smp",
            "2",
            "-m",
            "2G",
        ])
        .args(["-nodefaults", "-display", "none", "-no-reboot"])
        .arg("-kernel")
        .arg(kernel)
        .arg("-initrd")
        .arg(initramfs)
        .args(["-append", "console=ttyS0 quiet loglevel=3 panic=-1"])
        .arg("-serial")
        .arg(format!("file:{}", log.display()))
        .stdin(Stdio::null());
    let mut child = command.spawn().map_err(|source| Error::Start {
        program: "qemu-system-x86_64".to_owned(),
        source,
    })?;
    let start = Instant::now();
    while start.elapsed() < DEADLINE {
        if let Some(status) = child.try_wait().file("wait for the machine of", log)? {
            if status.success() {
                println!("powered off after {:.1} s", start.elapsed().as_secs_f64());
                return Ok(());
            }
            return Err(Error::told(format!(
                "qemu-system-x86_64 ended with {status}"
            )));
        }
        thread::sleep(Duration::from_millis(100));
    }
    child
        .kill()
        .and_then(|()| child.wait())
        .file("stop the machine of", log)?;
    Err(Error::told(format!(
        "the machine did not power off within {} s; see {}",
        DEADLINE.as_secs(),
        log.display()
    )))
}

/// Collections by kind.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    scavenges: u64,
    minor_mark_sweeps: u64,
    mark_compacts: u64,
}

fn judge(log: &Path) -> Result<()> {
    let text = fs::read(log).file("read", log)?;
    let sections = sections(&String::from_utf8_lossy(&text));
    let section = |name: &str| {
        sections.get(name).ok_or_else(|| {
            Error::told(format!(
                "the guest did not reach `{name}`; see {}",
                log.display()
            ))
        })
    };
    let seconds =
        |name: &str| -> Result<f64> { Ok(section(name)?.0.trim().parse().unwrap_or(f64::NAN)) };
    println!("kernel {}", section("kernel")?.0.trim());
    println!("{}", section("doctor")?.0.trim_end());
    println!("{}", section("report")?.0.trim_end());
    let (trace, code) = section("watch")?;
    let (record, _) = section("record")?;
    let told = traced(trace);
    let seen = recorded(record);
    println!(
        "--trace-gc {told:?}, perf-gate {seen:?}, {:.1} s",
        seconds("returned")? - seconds("started")?
    );
    if *code != 0 {
        return Err(Error::told(format!("watch ended with {code}")));
    }
    if told == Counts::default() || told != seen {
        return Err(Error::told(
            "the counts differ, or there were no collections",
        ));
    }
    println!("counts agree");
    Ok(())
}

/// Output and exit code of each step of the guest's script.
fn sections(console: &str) -> BTreeMap<String, (String, i32)> {
    let mut found = BTreeMap::new();
    let mut open: Option<(String, String)> = None;
    for line in console.lines() {
        let line = line.trim_end_matches('\r');
        if let Some(name) = line.strip_prefix("@@begin ") {
            open = Some((name.to_owned(), String::new()));
        } else if let Some(code) = line.strip_prefix("@@end ") {
            if let Some((name, text)) = open.take() {
                found.insert(name, (text, code.trim().parse().unwrap_or(-1)));
            }
        } else if let Some((_, text)) = &mut open {
            text.push_str(line);
            text.push('\n');
        }
    }
    found
}

/// Counts the lines that V8 prints, one a collection.
fn traced(text: &str) -> Counts {
    let mut counts = Counts::default();
    for line in text.lines().filter(|line| line.contains(" ms: ")) {
        if line.contains("Scavenge") {
            counts.scavenges += 1;
        } else if line.contains("Minor Mark-") {
            counts.minor_mark_sweeps += 1;
        } else if line.contains("Mark-Compact") || line.contains("Mark-sweep") {
            counts.mark_compacts += 1;
        }
    }
    counts
}

/// Sums the isolates of a machine record.
fn recorded(ndjson: &str) -> Counts {
    let mut counts = Counts::default();
    for line in ndjson
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
    {
        if line["type"] == "isolate" {
            let number = |key: &str| line[key].as_u64().unwrap_or(0);
            counts.scavenges += number("scavenges");
            counts.minor_mark_sweeps += number("minor_mark_sweeps");
            counts.mark_compacts += number("mark_compacts");
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_survive_carriage_returns_and_noise() {
        let found = sections(
            "boot\r\n@@begin a\r\none\r\ntwo\r\n@@end 3\r\nnoise\r\n@@begin b\r\n@@end 0\r\n",
        );
        assert_eq!(found["a"], ("one\ntwo\n".to_owned(), 3));
        assert_eq!(found["b"], (String::new(), 0));
    }

    #[test]
    fn kinds_are_told_apart() {
        let text = "[1:0x1]  12 ms: Scavenge 4.1 (5.0) -> 3.9 (6.0) MB\n\
                    [1:0x1]  13 ms: Minor Mark-Sweep 4 -> 3\n\
                    [1:0x1]  14 ms: Mark-Compact 4 -> 3\n\
                    [1:0x1]  14 ms: Mark-sweep 4 -> 3\n\
                    a program that prints Scavenge\n";
        let wanted = Counts {
            scavenges: 1,
            minor_mark_sweeps: 1,
            mark_compacts: 2,
        };
        assert_eq!(traced(text), wanted);
    }
}
