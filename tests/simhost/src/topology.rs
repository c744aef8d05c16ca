//! The PCI and NVLink tree of a scenario: who hangs below whom, path types, and the links a transfer crosses.
use crate::scenario::PciAddress;
use crate::scenario::spec::{Claim, Error, Port, Scenario};

mod route;

pub use route::{Collapse, Engine, LinkId, Route};

/// How far two GPUs are apart, in nvidia-smi's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PathType {
    /// At most one bridge (one switch).
    Pix,
    /// Several bridges, no host bridge.
    Pxb,
    /// One host bridge.
    Phb,
    /// Host bridges of one NUMA node.
    Node,
    /// Between NUMA nodes.
    Sys,
}

impl PathType {
    /// Reads nvidia-smi's word.
    pub fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "PIX" => Self::Pix,
            "PXB" => Self::Pxb,
            "PHB" => Self::Phb,
            "NODE" => Self::Node,
            "SYS" => Self::Sys,
            _ => return None,
        })
    }
    /// NVML's nvmlGpuTopologyLevel_t.
    pub fn nvml(self) -> u32 {
        match self {
            Self::Pix => 10,
            Self::Pxb => 20,
            Self::Phb => 30,
            Self::Node => 40,
            Self::Sys => 50,
        }
    }
}

/// NVML's number of a P2P state in nvidia-smi's spelling.
pub fn p2p_state(text: &str) -> Option<u32> {
    Some(match text {
        "OK" => 0,
        "CNS" => 1,
        "GNS" => 2,
        "TNS" => 3,
        "DR" => 4,
        "NS" => 5,
        "U" => 6,
        _ => return None,
    })
}

/// `SRC>DST` with numbers or `*`.
#[derive(Clone, Copy, Debug)]
pub struct PairPattern(Option<usize>, Option<usize>);

impl PairPattern {
    /// Reads the pattern.
    pub fn parse(text: &str) -> Option<Self> {
        let end = |t: &str| match t.trim() {
            "*" => Some(None),
            n => n.parse().ok().map(Some),
        };
        let (a, b) = text.split_once('>')?;
        Some(Self(end(a)?, end(b)?))
    }
    /// Whether the pair fits.
    pub fn fits(&self, a: usize, b: usize) -> bool {
        self.0.is_none_or(|n| n == a) && self.1.is_none_or(|n| n == b)
    }
}

/// What a PCI node of the tree is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Index in `host_bridges`.
    HostBridge(usize),
    /// Index in `bridges`.
    Bridge(usize),
    /// Index in `gpus`.
    Gpu(usize),
    /// Index in `nics`.
    Nic(usize),
    /// Index in `nvlink.switches`.
    NvSwitch(usize),
}

/// One node of the PCI tree.
#[derive(Clone, Debug)]
pub struct Node {
    /// What it is.
    pub role: Role,
    /// Its address; for a host bridge, function 0 of its root bus.
    pub at: PciAddress,
    /// Node above; None for host bridges.
    pub parent: Option<usize>,
    /// Nodes below, by address.
    pub children: Vec<usize>,
    /// Bus below and the highest bus below that, for bridges.
    pub buses: Option<(u8, u8)>,
}

/// The tree with its links.
#[derive(Clone, Debug)]
pub struct Topology {
    /// All nodes; host bridges first.
    pub nodes: Vec<Node>,
    /// Node of each GPU.
    pub gpu_nodes: Vec<usize>,
    /// Capacity of each link in bytes per ns.
    pub capacity: Vec<f64>,
    /// Rules for links on which posted writes pile up.
    pub collapses: Vec<Collapse>,
    packages: usize,
    scenario: Scenario,
    claims: Vec<(PairPattern, Claim)>,
}

impl Topology {
    /// Builds the tree; refuses functions whose bus leads nowhere.
    pub fn new(scenario: &Scenario) -> Result<Self, Error> {
        let mut nodes = Vec::new();
        let mut push = |role, at: PciAddress, buses| {
            nodes.push(Node {
                role,
                at,
                parent: None,
                children: Vec::new(),
                buses,
            })
        };
        let address = |text: &str| {
            PciAddress::parse(text).ok_or_else(|| Error(format!("`{text}` is not a PCI address")))
        };
        for (i, h) in scenario.host_bridges.iter().enumerate() {
            let at = address(&format!("{}:00.0", h.bus))?;
            push(Role::HostBridge(i), at, Some((at.bus, at.bus)));
        }
        for (i, b) in scenario.bridges.iter().enumerate() {
            push(Role::Bridge(i), address(&b.at)?, Some((b.bus, b.bus)));
        }
        for (i, g) in scenario.gpus.iter().enumerate() {
            push(Role::Gpu(i), address(&g.at)?, None);
        }
        for (i, n) in scenario.nics.iter().enumerate() {
            push(Role::Nic(i), address(&n.at)?, None);
        }
        for (i, s) in scenario
            .nvlink
            .iter()
            .flat_map(|l| l.switches.iter())
            .enumerate()
        {
            push(Role::NvSwitch(i), address(s)?, None);
        }
        let mut nodes: Vec<Node> = nodes;
        for i in 0..nodes.len() {
            if matches!(nodes[i].role, Role::HostBridge(_)) {
                continue;
            }
            let at = nodes[i].at;
            let parent = (0..nodes.len()).find(|&p| {
                p != i
                    && nodes[p].at.domain == at.domain
                    && nodes[p].buses.is_some_and(|(s, _)| s == at.bus)
            });
            let Some(parent) = parent else {
                return Err(Error(format!(
                    "PCI function {at}: no host bridge or bridge leads to bus {:02x}",
                    at.bus
                )));
            };
            nodes[i].parent = Some(parent);
            nodes[parent].children.push(i);
        }
        for i in 0..nodes.len() {
            let (mut at, mut steps) = (i, 0);
            while let Some(p) = nodes[at].parent {
                steps += 1;
                if steps > 32 {
                    return Err(Error(format!(
                        "PCI function {}: its bridges form a circle",
                        nodes[i].at
                    )));
                }
                let highest = nodes[at].buses.map_or(nodes[at].at.bus, |(_, sub)| sub);
                if let Some((_, sub)) = &mut nodes[p].buses {
                    *sub = (*sub).max(highest);
                }
                at = p;
            }
        }
        let order: Vec<PciAddress> = nodes.iter().map(|n| n.at).collect();
        for n in &mut nodes {
            n.children.sort_by_key(|&c| order[c]);
        }
        for h in &scenario.host_bridges {
            if h.numa >= 0
                && !scenario
                    .packages
                    .iter()
                    .flat_map(|p| &p.nodes)
                    .any(|n| n.id as i32 == h.numa)
            {
                return Err(Error(format!(
                    "host bridge {}: no NUMA node {}",
                    h.bus, h.numa
                )));
            }
        }
        let gpu_nodes = (0..scenario.gpus.len())
            .map(|g| {
                nodes
                    .iter()
                    .position(|n| n.role == Role::Gpu(g))
                    .unwrap_or(0)
            })
            .collect();
        let claims = scenario
            .claims
            .iter()
            .filter_map(|c| PairPattern::parse(&c.pair).map(|p| (p, c.clone())))
            .collect();
        let mut topology = Self {
            nodes,
            gpu_nodes,
            capacity: Vec::new(),
            collapses: Vec::new(),
            packages: scenario.packages.len(),
            scenario: scenario.clone(),
            claims,
        };
        topology.capacity = topology.capacities();
        topology.collapses = topology.collapse_rules()?;
        Ok(topology)
    }

    /// Host bridge above a node, and the chain of nodes from below it down to the node.
    pub fn chain(&self, node: usize) -> (usize, Vec<usize>) {
        let mut chain = vec![node];
        let mut at = node;
        while let Some(p) = self.nodes[at].parent {
            at = p;
            chain.push(p);
        }
        chain.pop();
        chain.reverse();
        (at, chain)
    }

    /// NUMA node of a PCI node; -1 where the firmware names none.
    pub fn numa(&self, node: usize) -> i32 {
        match self.nodes[self.chain(node).0].role {
            Role::HostBridge(h) => self.scenario.host_bridges[h].numa,
            _ => -1,
        }
    }

    /// Package of a NUMA node.
    pub fn package(&self, numa: i32) -> Option<usize> {
        self.scenario
            .packages
            .iter()
            .position(|p| p.nodes.iter().any(|n| n.id as i32 == numa))
    }

    /// Path type of two GPUs by the tree, without claims.
    pub fn path_type(&self, a: usize, b: usize) -> PathType {
        let ((root_a, chain_a), (root_b, chain_b)) =
            (self.chain(self.gpu_nodes[a]), self.chain(self.gpu_nodes[b]));
        if root_a != root_b {
            let (na, nb) = (self.numa(self.gpu_nodes[a]), self.numa(self.gpu_nodes[b]));
            return if na == nb {
                PathType::Node
            } else {
                PathType::Sys
            };
        }
        let shared = chain_a
            .iter()
            .zip(&chain_b)
            .take_while(|(x, y)| x == y)
            .count();
        if shared == 0 {
            return PathType::Phb;
        }
        // Between a GPU and the upstream port of its switch lies one downstream port: that is still one switch.
        let bridges = (chain_a.len() - shared).max(chain_b.len() - shared) - 1;
        if bridges <= 1 {
            PathType::Pix
        } else {
            PathType::Pxb
        }
    }

    /// The common ancestor that NVML states.
    pub fn stated_path_type(&self, a: usize, b: usize) -> PathType {
        self.claim(a, b)
            .and_then(|c| c.ancestor.as_deref())
            .and_then(PathType::parse)
            .unwrap_or_else(|| self.path_type(a, b))
    }

    fn claim(&self, a: usize, b: usize) -> Option<&Claim> {
        self.claims
            .iter()
            .find(|(p, _)| p.fits(a, b))
            .map(|(_, c)| c)
    }

    /// P2P state that NVML states for a pair.
    pub fn stated_p2p(&self, a: usize, b: usize) -> u32 {
        self.claim(a, b)
            .and_then(|c| c.p2p.as_deref())
            .and_then(p2p_state)
            .unwrap_or(0)
    }

    /// What cuDeviceCanAccessPeer answers.
    pub fn can_access(&self, a: usize, b: usize) -> bool {
        a != b
            && self
                .claim(a, b)
                .and_then(|c| c.can_access)
                .unwrap_or_else(|| self.stated_p2p(a, b) == 0)
    }

    /// What cuCtxEnablePeerAccess answers.
    pub fn enable_result(&self, a: usize, b: usize) -> u32 {
        self.claim(a, b)
            .and_then(|c| c.enable)
            .unwrap_or(if self.can_access(a, b) { 0 } else { 217 })
    }

    /// Whether the drivers state native atomics.
    pub fn native_atomics(&self, a: usize, b: usize) -> bool {
        self.claim(a, b)
            .and_then(|c| c.atomics)
            .unwrap_or_else(|| self.can_access(a, b) && self.nvlinks(a, b) > 0)
    }

    /// NVLinks that carry a pair: direct ones, or all of the weaker GPU through switches.
    pub fn nvlinks(&self, a: usize, b: usize) -> u32 {
        let Some(link) = &self.scenario.nvlink else {
            return 0;
        };
        if a == b {
            return 0;
        }
        if link.pairs.is_empty() {
            return self.active_links(a).min(self.active_links(b));
        }
        (0..link.links)
            .filter(|&l| self.link_up(a, l) && self.link_peer(a, l) == Some(b))
            .count() as u32
    }

    /// Whether a link of a GPU is up.
    pub fn link_up(&self, gpu: usize, number: u32) -> bool {
        self.scenario.nvlink.as_ref().is_some_and(|l| {
            number < l.links
                && !l
                    .down
                    .iter()
                    .any(|d| d[0] as usize == gpu && d[1] == number)
                && (l.pairs.is_empty() || self.link_peer(gpu, number).is_some())
        })
    }

    fn active_links(&self, gpu: usize) -> u32 {
        let links = self.scenario.nvlink.as_ref().map_or(0, |l| l.links);
        (0..links).filter(|&l| self.link_up(gpu, l)).count() as u32
    }

    /// GPU at the other end of a direct link: links are dealt to the pairs in order.
    pub fn link_peer(&self, gpu: usize, number: u32) -> Option<usize> {
        let mut first = 0;
        for pair in &self.scenario.nvlink.as_ref()?.pairs {
            let other = match (pair[0] as usize == gpu, pair[1] as usize == gpu) {
                (true, _) => pair[1],
                (_, true) => pair[0],
                _ => continue,
            };
            if (first..first + pair[2]).contains(&number) {
                return Some(other as usize);
            }
            first += pair[2];
        }
        None
    }

    /// Whether more than eight peers are possible (NVSwitch).
    pub fn has_nvswitch(&self) -> bool {
        self.scenario
            .nvlink
            .as_ref()
            .is_some_and(|l| l.pairs.is_empty())
    }

    /// Generation and width of the link above a PCI node, as it runs now.
    pub fn link_now(&self, node: usize) -> (u32, u32) {
        let own = match self.nodes[node].role {
            Role::Bridge(b) => (
                self.scenario.bridges[b].generation,
                self.scenario.bridges[b].width,
            ),
            Role::Gpu(g) => {
                let gpu = &self.scenario.gpus[g];
                (
                    gpu.generation.unwrap_or(self.scenario.gpu.pcie_generation),
                    gpu.width.unwrap_or(self.scenario.gpu.pcie_width),
                )
            }
            // Paravirtual devices sit on no link.
            Role::Nic(n) if self.scenario.nics[n].id.starts_with("1af4:") => return (0, 0),
            Role::Nic(_) => (5, 16),
            Role::NvSwitch(_) => (4, 2),
            Role::HostBridge(_) => return (0, 0),
        };
        match self.nodes[node].parent.map(|p| self.nodes[p].role) {
            Some(Role::Bridge(b))
                if self.scenario.bridges[b].port != Port::Upstream
                    && !matches!(self.nodes[node].role, Role::Bridge(_)) =>
            {
                (
                    own.0.min(self.scenario.bridges[b].generation),
                    own.1.min(self.scenario.bridges[b].width),
                )
            }
            _ => own,
        }
    }

    /// The most that device and slot can do together.
    pub fn link_most(&self, node: usize) -> (u32, u32) {
        let own = match self.nodes[node].role {
            Role::Gpu(_) => (
                self.scenario.gpu.pcie_generation,
                self.scenario.gpu.pcie_width,
            ),
            _ => self.link_now(node),
        };
        match self.nodes[node].parent.map(|p| self.nodes[p].role) {
            Some(Role::Bridge(b))
                if self.scenario.bridges[b].port != Port::Upstream
                    && !matches!(self.nodes[node].role, Role::Bridge(_)) =>
            {
                (
                    own.0.min(self.scenario.bridges[b].generation),
                    own.1.min(self.scenario.bridges[b].width),
                )
            }
            _ => own,
        }
    }
}
