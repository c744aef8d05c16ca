//! The scenario of this process, read once, and the page that all processes of one run share: the modelled clock, the
//! counts of faults, memory in use, and link counters.
use crate::MAX_GPUS;
use crate::flows::{Activity, Flows, reset};
use crate::scenario::{Fault, Kind, Mechanism, Scenario, Via, spec::Answers};
use crate::topology::Topology;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Environment variable with the path of the resolved scenario.
pub const SCENARIO_VARIABLE: &str = "SIMHOST_SCENARIO";
const PROCESSES: usize = 256;
const FAULTS: usize = 256;

/// What one process holds.
#[repr(C)]
pub struct ProcessSlot {
    /// Process id; 0: free.
    pub pid: AtomicU32,
    /// GPUs on which it has a context, as a bit set.
    pub contexts: AtomicU32,
    /// Transfers under way, counted only where some fault asks for load.
    pub flying: AtomicU32,
    /// What it says of its transfers.
    pub activity: Activity,
    /// Bytes of device memory on each GPU.
    pub used: [AtomicU64; MAX_GPUS],
}

/// The shared page. All zero is its valid initial state.
#[repr(C)]
pub struct Shared {
    /// Modelled nanoseconds that some host thread has seen.
    pub clock: AtomicU64,
    /// Transfers that each fault was asked about.
    fault_counts: [AtomicU64; FAULTS],
    /// How often each fault struck.
    fault_strikes: [AtomicU64; FAULTS],
    /// Bytes sent and received over NVLink by each GPU.
    pub nvlink_bytes: [[AtomicU64; 2]; MAX_GPUS],
    /// Transfers of all processes.
    pub flows: Flows,
    /// Processes.
    pub processes: [ProcessSlot; PROCESSES],
}

/// Scenario, tree, faults and shared page.
pub struct World {
    /// The scenario.
    pub scenario: Scenario,
    /// Its tree.
    pub topology: Topology,
    /// Its faults.
    pub faults: Vec<Fault>,
    shared: &'static Shared,
}

static WORLD: OnceLock<Result<World, String>> = OnceLock::new();

/// The world of this process; None (said once on standard error) where there is no usable scenario.
pub fn world() -> Option<&'static World> {
    WORLD
        .get_or_init(|| {
            let result = match std::env::var_os(SCENARIO_VARIABLE) {
                None => Err(format!("{SCENARIO_VARIABLE} is not set; start programs with `simhost run SCENARIO -- PROGRAM`")),
                Some(path) => World::open(Path::new(&path)),
            };
            if let Err(e) = &result {
                eprintln!("simhost: {e}");
            }
            result
        })
        .as_ref()
        .ok()
}

impl World {
    fn open(path: &Path) -> Result<World, String> {
        let scenario = Scenario::read(path).map_err(|e| e.0)?;
        let topology = Topology::new(&scenario).map_err(|e| e.0)?;
        let faults = scenario.faults().map_err(|e| e.0)?;
        if faults.len() > FAULTS {
            return Err(format!("{} faults, at most {FAULTS}", faults.len()));
        }
        let shared = map_shared(&shared_path(path))
            .map_err(|e| format!("shared state beside {}: {e}", path.display()))?;
        Ok(World {
            scenario,
            topology,
            faults,
            shared,
        })
    }

    /// The shared page.
    pub fn shared(&self) -> &'static Shared {
        self.shared
    }

    /// GPUs of the host.
    pub fn gpus(&self) -> usize {
        self.scenario.gpus.len()
    }

    /// Bytes of memory of a GPU.
    pub fn memory(&self) -> u64 {
        self.scenario.gpu.memory_mib << 20
    }

    /// A UUID that follows from host name and number.
    pub fn uuid(&self, gpu: usize) -> [u8; 16] {
        gpu_uuid(&self.scenario, gpu)
    }

    /// Faults that concern a transfer, with their index; `count` is not touched.
    pub fn concerned(
        &self,
        source: Option<usize>,
        destination: Option<usize>,
        mechanism: Mechanism,
        via: Via,
    ) -> impl Iterator<Item = (usize, &Fault)> {
        self.faults
            .iter()
            .enumerate()
            .filter(move |(_, f)| f.concerns(source, destination, mechanism, via))
    }

    /// Counts one transfer against a fault and says whether it strikes.
    pub fn strikes(&self, fault: usize) -> bool {
        let count = self.shared.fault_counts[fault].fetch_add(1, Ordering::SeqCst);
        let strikes = self.faults[fault].strikes(count);
        // These two strike only where a flag follows; who plays them says so.
        let later = matches!(self.faults[fault].kind, Kind::Late { .. } | Kind::LostFlag);
        if strikes && !later {
            self.struck(fault);
        }
        strikes
    }

    /// Whether NVML's calls about a GPU return.
    pub fn nvml_answers(&self, gpu: usize) -> bool {
        match self.scenario.gpus[gpu].nvml {
            Answers::Always => true,
            Answers::Never => false,
            Answers::UntilHang => {
                let wedged = |(_, f): &(usize, &Fault)| {
                    matches!(f.kind, Kind::Hang | Kind::Stuck) && f.gpus().any(|g| g == gpu)
                };
                let mut wedging = self.faults.iter().enumerate().filter(wedged);
                wedging.all(|(i, _)| self.shared.fault_strikes[i].load(Ordering::SeqCst) == 0)
            }
        }
    }

    /// Notes that a fault has struck.
    pub fn struck(&self, fault: usize) {
        self.shared.fault_strikes[fault].fetch_add(1, Ordering::SeqCst);
    }

    /// Whether some fault asks for load. Transfers then take real time, so that "under way" means something.
    pub fn loaded(&self) -> bool {
        self.faults.iter().any(|f| f.load > 0)
    }

    /// Other transfers of the run that are under way, of any process.
    pub fn others_under_way(&self) -> u32 {
        let all: u32 = self
            .processes()
            .map(|p| p.flying.load(Ordering::SeqCst))
            .sum();
        all.saturating_sub(1)
    }

    /// Slot of this process, taken on the first call.
    pub fn slot(&self) -> Option<&'static ProcessSlot> {
        let pid = std::process::id();
        let slots = &self.shared.processes;
        if let Some(slot) = slots.iter().find(|s| s.pid.load(Ordering::SeqCst) == pid) {
            return Some(slot);
        }
        slots.iter().find(|slot| {
            let old = slot.pid.load(Ordering::SeqCst);
            if old != 0 && alive(old) {
                return false;
            }
            let taken = slot
                .pid
                .compare_exchange(old, pid, Ordering::SeqCst, Ordering::SeqCst)
                .is_ok();
            if taken {
                slot.contexts.store(0, Ordering::SeqCst);
                slot.flying.store(0, Ordering::SeqCst);
                reset(&slot.activity);
                slot.used.iter().for_each(|u| u.store(0, Ordering::SeqCst));
            }
            taken
        })
    }

    /// Living processes of the run.
    pub fn processes(&self) -> impl Iterator<Item = &'static ProcessSlot> {
        self.shared.processes.iter().filter(|s| {
            let pid = s.pid.load(Ordering::SeqCst);
            pid != 0 && alive(pid)
        })
    }

    /// Bytes of a GPU in use by all processes, and by those that the scenario invents.
    pub fn used(&self, gpu: usize) -> u64 {
        self.processes()
            .map(|p| p.used[gpu].load(Ordering::SeqCst))
            .sum::<u64>()
            + (self.scenario.gpus[gpu].hidden_use_mib << 20)
    }
}

/// UUID of a GPU: follows from host name and number, version and variant bits set.
pub fn gpu_uuid(scenario: &Scenario, gpu: usize) -> [u8; 16] {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut out = [0; 16];
    for (i, byte) in out.iter_mut().enumerate() {
        for b in scenario.host.name.bytes().chain([gpu as u8, i as u8]) {
            hash = (hash ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        *byte = (hash >> 32) as u8;
    }
    out[6] = out[6] & 0x0f | 0x40;
    out[8] = out[8] & 0x3f | 0x80;
    out
}

/// NVML's spelling of a UUID.
pub fn uuid_text(u: &[u8; 16]) -> String {
    let hex: String = u.iter().map(|b| format!("{b:02x}")).collect();
    format!(
        "GPU-{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    )
}

/// Whether a process exists and is not a zombie.
fn alive(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|s| {
        !s.rsplit(')')
            .next()
            .is_some_and(|t| t.trim_start().starts_with(['Z', 'X']))
    })
}

/// Where the shared page of a scenario lies.
pub fn shared_path(scenario: &Path) -> PathBuf {
    scenario.with_extension("shared")
}

fn map_shared(path: &Path) -> std::io::Result<&'static Shared> {
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)?;
    let size = size_of::<Shared>();
    if file.metadata()?.len() < size as u64 {
        file.set_len(size as u64)?;
    }
    // SAFETY: a fresh shared mapping of a file of at least this size; it is never unmapped.
    let p = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            size,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    if p == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: page aligned, large enough, lives for ever, and made of atomics only, for which any bytes are valid.
    Ok(unsafe { &*p.cast::<Shared>() })
}

/// How often each fault of a staged scenario has struck, in the order of the scenario.
pub fn strikes_of(scenario: &Path, faults: usize) -> std::io::Result<Vec<u64>> {
    let shared = map_shared(&shared_path(scenario))?;
    let counts = shared.fault_strikes.iter().take(faults);
    Ok(counts.map(|c| c.load(Ordering::SeqCst)).collect())
}

/// How far the modelled clock of a staged scenario has come, in nanoseconds.
pub fn modelled_ns(scenario: &Path) -> std::io::Result<u64> {
    let shared = map_shared(&shared_path(scenario))?;
    Ok(shared.clock.load(Ordering::SeqCst))
}

/// A transfer under way, while the value lives.
pub struct Flight(&'static ProcessSlot);

impl Flight {
    /// Real time that a transfer takes at least in a scenario with faults that ask for load.
    pub const DWELL: std::time::Duration = std::time::Duration::from_millis(10);

    /// Starts one; None where no fault asks for load.
    pub fn start(world: &World) -> Option<Self> {
        let slot = world.loaded().then(|| world.slot()).flatten()?;
        slot.flying.fetch_add(1, Ordering::SeqCst);
        Some(Self(slot))
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.0.flying.fetch_sub(1, Ordering::SeqCst);
    }
}
