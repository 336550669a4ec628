//! `build-ebpf`: the committed object and its provenance.
//!
//! Rust's BPF target is tier 3, so a compiler with a `core` for it is the rare part. Two are known: Debian
//! ships one prebuilt (`libstd-rust-web-dev-bpf`), and a rustup nightly with `rust-src` compiles its own.
//! Paths are remapped and debug information is dropped after linking (BTF stays), so the same compiler
//! gives the same bytes in any folder; another compiler gives other bytes, which is why `--check` compares
//! them only when the recorded compiler is the one at hand.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::error::{Error, FileContext, Result};
use crate::run::{capture, foreign, run, target_dir, which, workspace};
use crate::sources;

const TARGET: &str = "bpfel-unknown-none";
pub const OBJECT: &str = "perf-gate.bpf.o";
const PROVENANCE: &str = "provenance.json";
/// Crates that use unstable features: BPF intrinsics and inline assembly.
const UNSTABLE_CRATES: &str = "aya_ebpf,aya_log_ebpf,perf_gate_ebpf";

/// A compiler that can build for BPF.
pub enum Toolchain {
    /// Debian's packages: a stable compiler with a prebuilt core.
    Debian,
    /// rustup's nightly, which compiles core from `rust-src`.
    Nightly,
}

impl Toolchain {
    /// The first one that is complete, or what to install.
    pub fn find() -> Result<Self> {
        if which("bpf-linker").is_none() {
            return Err(Error::told(
                "no bpf-linker in PATH; install it with `LLVM_PREFIX=/usr/lib/llvm-22 cargo install bpf-linker \
                 --version 0.13.0 --no-default-features --features llvm-22` (Debian: apt-get install llvm-22-dev \
                 zlib1g-dev first) or `cargo install bpf-linker`",
            ));
        }
        if Path::new("/usr/bin/cargo").exists() && has_core(Path::new("/usr")) {
            return Ok(Self::Debian);
        }
        if which("rustup").is_some() {
            let sysroot = foreign("rustup")
                .args(["run", "nightly", "rustc", "--print", "sysroot"])
                .output();
            if let Ok(output) = sysroot {
                let root = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
                let library = root.join("lib/rustlib/src/rust/library/core");
                if output.status.success() && library.is_dir() {
                    return Ok(Self::Nightly);
                }
            }
        }
        Err(Error::told(
            "no Rust compiler with a core library for BPF; install Debian's (apt-get install rustc-web cargo-web \
             libstd-rust-web-dev-bpf) or `rustup toolchain install nightly --component rust-src`",
        ))
    }

    fn rustc(&self) -> Command {
        match self {
            Self::Debian => foreign("/usr/bin/rustc"),
            Self::Nightly => {
                let mut command = foreign("rustup");
                command.args(["run", "nightly", "rustc"]);
                command
            }
        }
    }

    fn cargo(&self) -> Command {
        match self {
            Self::Debian => {
                let mut command = foreign("/usr/bin/cargo");
                command
                    .env("RUSTC", "/usr/bin/rustc")
                    .env("RUSTC_BOOTSTRAP", UNSTABLE_CRATES)
                    .arg("build");
                command
            }
            Self::Nightly => {
                let mut command = foreign("rustup");
                command.args(["run", "nightly", "cargo", "build", "-Zbuild-std=core"]);
                command
            }
        }
    }

    /// One line that two builds share exactly when they can be expected to give the same bytes.
    pub fn compiler(&self) -> Result<String> {
        let verbose = capture(self.rustc().arg("-vV"))?;
        let version = verbose.lines().next().unwrap_or_default();
        let llvm = verbose
            .lines()
            .find_map(|line| line.strip_prefix("LLVM version: "))
            .unwrap_or("unknown");
        Ok(format!("{version}, LLVM {llvm}"))
    }
}

/// A sysroot holds a prebuilt core for BPF.
fn has_core(prefix: &Path) -> bool {
    let lib = prefix.join("lib/rustlib").join(TARGET).join("lib");
    fs::read_dir(lib).is_ok_and(|dir| {
        dir.flatten()
            .any(|entry| entry.file_name().to_string_lossy().starts_with("libcore-"))
    })
}

fn committed() -> PathBuf {
    workspace().join("perf-gate-user/src/bpf")
}

/// Builds the object into `out` (the committed folder when `None`).
pub fn build(out: Option<&Path>) -> Result<PathBuf> {
    let toolchain = Toolchain::find()?;
    let dir = out.map_or_else(committed, Path::to_path_buf);
    let object = compile(&toolchain, &dir)?;
    println!("{}", object.display());
    Ok(object)
}

fn compile(toolchain: &Toolchain, dir: &Path) -> Result<PathBuf> {
    let root = workspace();
    let compiler = toolchain.compiler()?;
    let linker = linker()?;
    let source = sources::source_sha256(&root).file("hash the eBPF sources below", &root)?;
    let built = link(toolchain, &root)?;

    fs::create_dir_all(dir).file("create", dir)?;
    // Both files are written aside and renamed, the object first: an interruption leaves a pair that the
    // build check refuses rather than one it believes.
    let object = dir.join(OBJECT);
    let part = dir.join(".perf-gate.bpf.o.part");
    strip(&built, &part)?;
    let bytes = fs::read(&part).file("read", &part)?;
    fs::rename(&part, &object).file("rename", &part)?;
    let provenance = json!({
        "compiler": compiler,
        "linker": linker,
        "source_sha256": source,
        "object_sha256": sources::sha256(&bytes),
    });
    let file = dir.join(PROVENANCE);
    let part = dir.join(".provenance.json.part");
    fs::write(&part, format!("{provenance:#}\n")).file("write", &part)?;
    fs::rename(&part, &file).file("rename", &part)?;
    Ok(object)
}

/// Compiles and links; returns the object with its debug information.
fn link(toolchain: &Toolchain, root: &Path) -> Result<PathBuf> {
    let target = target_dir().join("bpf");
    let cargo_home = env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| env::home_dir().map(|home| home.join(".cargo")))
        .ok_or_else(|| Error::told("neither CARGO_HOME nor HOME is set; set one"))?;
    let mut flags: Vec<String> = sources::RUSTFLAGS.iter().map(ToString::to_string).collect();
    // rustc applies the last match, so the folder that may lie within another comes later.
    for (from, to) in [
        (cargo_home, "/cargo"),
        (root.to_path_buf(), "/perf-gate"),
        (target.clone(), "/target"),
    ] {
        flags.push(format!("--remap-path-prefix={}={to}", from.display()));
    }
    let mut cargo = toolchain.cargo();
    cargo
        .current_dir(root)
        .args([
            "--locked",
            "--package",
            "perf-gate-ebpf",
            "--bin",
            "perf-gate-ebpf",
        ])
        .args(["--features", "bpf", "--release", "--target", TARGET])
        .arg("--target-dir")
        .arg(&target)
        // Encoded, because a folder's name may hold a space.
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"));
    for setting in sources::PROFILE {
        cargo.args(["--config", setting]);
    }
    run(&mut cargo)?;
    Ok(target.join(TARGET).join("release/perf-gate-ebpf"))
}

/// bpf-linker generates the code, with an LLVM of its own choice that it does not name; objcopy's is named
/// in its place, as both come from the same packages.
fn linker() -> Result<String> {
    let version = capture(foreign("bpf-linker").arg("--version"))?;
    let objcopy = capture(foreign(objcopy()?).arg("--version"))?;
    let llvm = objcopy
        .split_once("LLVM version ")
        .and_then(|(_, rest)| rest.split_whitespace().next());
    Ok(format!("{version}, LLVM {}", llvm.unwrap_or("unknown")))
}

fn objcopy() -> Result<PathBuf> {
    ["llvm-objcopy-22", "llvm-objcopy", "rust-objcopy"]
        .into_iter()
        .find_map(which)
        .ok_or_else(|| {
            Error::told(
                "no llvm-objcopy in PATH; install it (Debian: apt-get install llvm-22, or cargo install cargo-binutils)",
            )
        })
}

/// Drops DWARF, which nobody reads at run time and which is most of the size; BTF stays.
fn strip(from: &Path, to: &Path) -> Result<()> {
    run(foreign(objcopy()?).arg("--strip-debug").arg(from).arg(to))
}

/// Rebuilds aside and says whether the committed object is what its sources give. Returns the rebuilt one
/// if another compiler made it, and it therefore has other bytes.
pub fn check() -> Result<Option<PathBuf>> {
    let dir = committed();
    let recorded = read_provenance(&dir)?;
    let text = |key: &str| recorded[key].as_str().unwrap_or_default();
    let root = workspace();
    let source = sources::source_sha256(&root).file("hash the eBPF sources below", &root)?;
    if source != text("source_sha256") {
        return Err(Error::told(
            "the eBPF sources changed after the committed object was built: run `cargo xtask build-ebpf` and commit both files",
        ));
    }
    let object = dir.join(OBJECT);
    let bytes = fs::read(&object).file("read", &object)?;
    if sources::sha256(&bytes) != text("object_sha256") {
        return Err(Error::told(format!(
            "{} is not the object its provenance names: run `cargo xtask build-ebpf` and commit both files",
            object.display()
        )));
    }
    let toolchain = Toolchain::find()?;
    let aside = target_dir().join("bpf-check");
    let fresh = compile(&toolchain, &aside)?;
    let compiler = toolchain.compiler()?;
    let linker = linker()?;
    if compiler != text("compiler") || linker != text("linker") {
        println!(
            "sources match; bytes not compared: built with {} and {}, here are {compiler} and {linker}",
            text("compiler"),
            text("linker")
        );
        return Ok(Some(fresh));
    }
    if fs::read(&fresh).file("read", &fresh)? != bytes {
        return Err(Error::told(format!(
            "the committed object differs from {}, built here by the same compiler: run `cargo xtask build-ebpf` and commit both files",
            fresh.display()
        )));
    }
    println!("the committed object is what {compiler} makes of the sources, byte for byte");
    Ok(None)
}

fn read_provenance(dir: &Path) -> Result<Value> {
    let file = dir.join(PROVENANCE);
    let text = fs::read_to_string(&file).file("read", &file)?;
    serde_json::from_str(&text).map_err(|why| {
        Error::told(format!(
            "{} is not JSON ({why}): run `cargo xtask build-ebpf`",
            file.display()
        ))
    })
}
