//! The programs that processes of the tree run, one entry per file. An image is looked at once: is
//! V8 in it (or in a library it names), where do the probes go, has a control proven them. What
//! belongs to a process (its links) is handed out, not kept here.

use super::{
    attach::{AttachError, Links, Targets},
    kernel_side::KernelSide,
    proof::{self, Proof},
};
use crate::{
    elf::{self, Image as Elf},
    kernel::bpf::Scope,
    model::Lane,
    v8::{cache, locate, plan::Plan},
};
use std::{
    collections::HashMap,
    ffi::OsStr,
    fs::File,
    io,
    os::unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    path::{Path, PathBuf},
};

/// Up to this many processes of one binary get links of their own; from then on one link serves all.
/// Links are made and dropped in milliseconds each, which a tree of hundreds would feel.
const SCOPED_PROCESSES: u32 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct FileId {
    dev: u64,
    ino: u64,
}

/// Index of an image that holds V8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NodeId(usize);

/// A file with V8 in it.
pub struct NodeImage {
    file: File,
    pub plan: Plan,
    /// The C library that its programs load, for markers and ends.
    libc: Option<(File, Plan)>,
    pub proof: Proof,
    pub attached: bool,
    scoped: u32,
    wide: Option<Links>,
}

impl NodeImage {
    fn targets(&self) -> Targets<'_> {
        Targets::of(&self.file, &self.plan, self.libc.as_ref())
    }

    /// Points of a lane, the C library's included.
    pub fn points(&self, lane: Lane) -> u64 {
        let libc = self.libc.iter().flat_map(|(_, plan)| &plan.points);
        self.plan
            .points
            .iter()
            .chain(libc)
            .filter(|p| p.lane == lane)
            .count() as u64
    }
}

/// The C library that the program will load, and its points.
fn c_library(elf: &Elf, exe: &Path, root: &Path, paths: Option<&OsStr>) -> Option<(File, Plan)> {
    let library = locate::libraries(elf, exe, root, paths, &locate::C_NAMES)
        .into_iter()
        .next()?;
    let plan = Plan::resolve_libc(&library.image).ok()?;
    let file = library.image.file().try_clone().ok()?;
    Some((file, plan))
}

/// What looking at an executable came to.
#[derive(Clone, Debug)]
enum Seen {
    Node(NodeId),
    Other,
    /// It could not be looked at.
    Unreadable(String),
}

/// How the images of a session are looked at.
pub struct Images {
    seen: HashMap<FileId, Seen>,
    nodes: Vec<NodeImage>,
    /// Where resolved plans are kept between runs.
    plans: Option<PathBuf>,
    prover: proof::Prover,
}

impl Images {
    #[must_use]
    pub fn new(plans: Option<PathBuf>, prover: proof::Prover) -> Self {
        Self {
            seen: HashMap::new(),
            nodes: Vec::new(),
            plans,
            prover,
        }
    }

    #[must_use]
    pub fn node(&self, id: NodeId) -> &NodeImage {
        &self.nodes[id.0]
    }

    #[must_use]
    pub fn nodes(&self) -> &[NodeImage] {
        &self.nodes
    }

    /// The V8-bearing image that the stopped process `pid` runs, if any.
    ///
    /// # Errors
    /// A sentence, when its executable cannot be read or understood.
    pub fn look(&mut self, pid: u32) -> Result<Option<NodeId>, String> {
        let exe = PathBuf::from(format!("/proc/{pid}/exe"));
        let (file, id) = open(&exe).map_err(|e| format!("its executable cannot be opened: {e}"))?;
        // What a program was the first time, it stays: also one whose library another environment would
        // find elsewhere.
        let seen = match self.seen.get(&id) {
            Some(seen) => seen.clone(),
            None => {
                let seen = self.examine(pid, file);
                self.seen.insert(id, seen.clone());
                seen
            }
        };
        match seen {
            Seen::Node(node) => Ok(Some(node)),
            Seen::Other => Ok(None),
            Seen::Unreadable(why) => Err(why),
        }
    }

    fn examine(&mut self, pid: u32, file: File) -> Seen {
        let exe = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        let elf = match file
            .try_clone()
            .map_err(elf::Error::Io)
            .and_then(|f| Elf::from_file(f, &exe))
        {
            Ok(elf) => elf,
            // A helper for another machine is no node that could be watched, and no fault.
            Err(elf::Error::Not64Bit | elf::Error::WrongMachine(_)) => return Seen::Other,
            Err(e) => return Seen::Unreadable(e.to_string()),
        };
        let root = PathBuf::from(format!("/proc/{pid}/root"));
        let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let paths = environ
            .split(|b| *b == 0)
            .find_map(|v| v.strip_prefix(b"LD_LIBRARY_PATH="))
            .map(OsStr::from_bytes);
        let libc = || c_library(&elf, &exe, &root, paths);
        match self.plan(&elf) {
            Ok(Some(plan)) => return Seen::Node(self.add(pid, file, plan, libc())),
            Ok(None) if !locate::may_need(&elf) => return Seen::Other,
            Ok(None) => {}
            Err(e) => return Seen::Unreadable(e.to_string()),
        }
        for library in locate::libraries(&elf, &exe, &root, paths, &locate::V8_NAMES) {
            let path = library.image.path().to_owned();
            let (file, id) = match open(&path) {
                Ok(x) => x,
                Err(e) => return Seen::Unreadable(format!("{}: {e}", path.display())),
            };
            if let Some(seen @ Seen::Node(_)) = self.seen.get(&id) {
                return seen.clone();
            }
            match self.plan(&library.image) {
                Ok(Some(plan)) => {
                    let seen = Seen::Node(self.add(pid, file, plan, libc()));
                    self.seen.insert(id, seen.clone());
                    return seen;
                }
                Ok(None) => {}
                Err(e) => return Seen::Unreadable(format!("{}: {e}", path.display())),
            }
        }
        Seen::Other
    }

    fn plan(&self, elf: &Elf) -> elf::Result<Option<Plan>> {
        let Some(dir) = &self.plans else {
            return Plan::resolve(elf);
        };
        let Some(resolved) = cache::resolve(dir, elf)? else {
            return Ok(None);
        };
        if let Some(e) = resolved.not_stored {
            log::debug!("{e}");
        }
        Ok(Some(resolved.plan))
    }

    fn add(&mut self, pid: u32, file: File, mut plan: Plan, libc: Option<(File, Plan)>) -> NodeId {
        match &libc {
            Some((_, libc)) => plan.blind.extend(libc.blind.iter().cloned()),
            None => plan
                .blind
                .push((Lane::Window, "its C library was not found".into())),
        }
        let targets = Targets::of(&file, &plan, libc.as_ref());
        let proof = self.prover.proof(pid, &targets, &plan);
        self.nodes.push(NodeImage {
            file,
            plan,
            libc,
            proof,
            attached: false,
            scoped: 0,
            wide: None,
        });
        NodeId(self.nodes.len() - 1)
    }

    /// Attaches the image's probes for one process (thread-group id `tgid` in the initial PID
    /// namespace). `None`: the links that serve it serve others too and stay here.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn give(
        &mut self,
        kernel: &mut KernelSide,
        id: NodeId,
        pid: u32,
        tgid: u32,
    ) -> Result<Option<Links>, AttachError> {
        let image = &mut self.nodes[id.0];
        if image.wide.is_some() {
            return Ok(None);
        }
        if kernel.multi && image.scoped < SCOPED_PROCESSES {
            let _ = kernel.scoped.insert(tgid, 1, 0);
            let links = image.targets().attach(kernel, Scope::Process(pid))?;
            image.scoped += 1;
            image.attached = true;
            return Ok(Some(links));
        }
        image.wide = Some(image.targets().attach(kernel, Scope::Everyone)?);
        image.attached = true;
        Ok(None)
    }

    /// Takes every link that is still attached, for dropping at leisure.
    pub fn take_links(&mut self) -> Vec<Links> {
        self.nodes
            .iter_mut()
            .filter_map(|n| n.wide.take())
            .collect()
    }
}

fn open(path: &Path) -> io::Result<(File, FileId)> {
    let file = File::open(path)?;
    let meta = file.metadata()?;
    let id = FileId {
        dev: meta.dev(),
        ino: meta.ino(),
    };
    Ok((file, id))
}
