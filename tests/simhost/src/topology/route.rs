//! The links of the rate model and the routes over them.
use super::{Role, Topology};
use crate::scenario::PciAddress;
use crate::scenario::pci::payload_rate;
use crate::scenario::spec::{Error, Port};

/// Number of a link of the rate model.
pub type LinkId = usize;

/// Links that a transfer crosses, and the rate it cannot exceed by itself (GB/s = bytes per ns).
#[derive(Clone, Debug, Default)]
pub struct Route {
    /// Links crossed.
    pub links: Vec<LinkId>,
    /// Own limit.
    pub limit: f64,
}

/// What a transfer is carried by, as far as rates care.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// Copy engine.
    Copy,
    /// SM loads or stores.
    Sm,
}

/// A link that carries little while posted writes pile up on it.
#[derive(Clone, Copy, Debug)]
pub struct Collapse {
    /// The link.
    pub link: LinkId,
    /// From so many writes at once.
    pub writers: usize,
    /// To so many roots.
    pub roots: usize,
    /// What is left, bytes per ns.
    pub gbps: f64,
}

impl Topology {
    /// Number of the root above a GPU.
    pub fn root_of(&self, gpu: usize) -> u32 {
        self.chain(self.gpu_nodes[gpu]).0 as u32
    }

    pub(super) fn collapse_rules(&self) -> Result<Vec<Collapse>, Error> {
        let rule = |c: &crate::scenario::spec::Collapse| {
            let at = PciAddress::parse(&c.at);
            let bridge = |n: &super::Node| Some(n.at) == at && matches!(n.role, Role::Bridge(_));
            let node = self.nodes.iter().position(bridge).ok_or_else(|| {
                Error(format!(
                    "collapse at `{}`: no bridge has this address",
                    c.at
                ))
            })?;
            if c.gbps.is_nan() || c.gbps <= 0.0 {
                return Err(Error(format!(
                    "collapse at `{}`: gbps must be above 0",
                    c.at
                )));
            }
            Ok(Collapse {
                link: Self::up(node),
                writers: c.writers as usize,
                roots: c.roots as usize,
                gbps: c.gbps,
            })
        };
        self.scenario.collapses.iter().map(rule).collect()
    }

    // Links: two for each PCI node (up, down), then two between each ordered pair of packages and their memory, then
    // NVLink out and in and memory of each GPU.
    pub(super) fn capacities(&self) -> Vec<f64> {
        let mut all = Vec::new();
        for n in 0..self.nodes.len() {
            let rate = match self.nodes[n].role {
                Role::HostBridge(_) => f64::INFINITY,
                // Inside a switch, and inside a root complex.
                Role::Bridge(b) if self.scenario.bridges[b].port != Port::Upstream => f64::INFINITY,
                _ => {
                    let (generation, width) = self.link_now(n);
                    payload_rate(generation, width)
                }
            };
            all.extend([rate, rate]);
        }
        all.extend(std::iter::repeat_n(
            self.scenario.rates.packages_gbps,
            self.packages * self.packages,
        ));
        for g in 0..self.gpu_nodes.len() {
            let rate = self
                .scenario
                .nvlink
                .as_ref()
                .map_or(0.0, |l| l.link_gbps * f64::from(self.active_links(g)));
            all.extend([rate, rate, self.scenario.gpu.memory_gbps]);
        }
        all
    }

    fn up(node: usize) -> LinkId {
        2 * node
    }
    fn down(node: usize) -> LinkId {
        2 * node + 1
    }
    fn gpu_link(&self, gpu: usize, which: usize) -> LinkId {
        2 * self.nodes.len() + self.packages * self.packages + 3 * gpu + which
    }

    /// Route of bytes from one GPU's memory to another's.
    pub fn peer_route(&self, source: usize, destination: usize, engine: Engine) -> Route {
        if source == destination {
            return Route {
                links: vec![self.gpu_link(source, 2)],
                limit: self.scenario.gpu.memory_gbps,
            };
        }
        let rates = &self.scenario.rates;
        let links = self.nvlinks(source, destination);
        if let (Some(nvlink), true) = (&self.scenario.nvlink, links > 0) {
            let share = if engine == Engine::Copy {
                rates.nvlink_copy
            } else {
                rates.nvlink_sm
            };
            return Route {
                links: vec![self.gpu_link(source, 0), self.gpu_link(destination, 1)],
                limit: share * nvlink.link_gbps * f64::from(links),
            };
        }
        let ((root_a, chain_a), (root_b, chain_b)) = (
            self.chain(self.gpu_nodes[source]),
            self.chain(self.gpu_nodes[destination]),
        );
        let mut shared = chain_a
            .iter()
            .zip(&chain_b)
            .take_while(|(x, y)| x == y)
            .count();
        if root_a != root_b || self.redirected(&chain_a[shared..]) {
            shared = 0;
        }
        let mut route: Vec<LinkId> = chain_a[shared..]
            .iter()
            .rev()
            .map(|&n| Self::up(n))
            .collect();
        route.extend(self.between(
            self.numa(self.gpu_nodes[source]),
            self.numa(self.gpu_nodes[destination]),
        ));
        route.extend(chain_b[shared..].iter().map(|&n| Self::down(n)));
        let share = if engine == Engine::Copy {
            1.0
        } else {
            rates.pcie_sm
        };
        let limit = share
            * route
                .iter()
                .map(|&l| self.capacity_of(l))
                .fold(f64::INFINITY, f64::min);
        Route {
            links: route,
            limit,
        }
    }

    fn capacity_of(&self, link: LinkId) -> f64 {
        self.capacity.get(link).copied().unwrap_or(f64::INFINITY)
    }

    /// ACS P2P Request Redirect (bit 2) on a downstream or root port on the way sends everything through the root.
    fn redirected(&self, chain: &[usize]) -> bool {
        chain.iter().any(|&n| matches!(self.nodes[n].role, Role::Bridge(b) if self.scenario.bridges[b].port != Port::Upstream && self.scenario.bridges[b].acs.unwrap_or(0) & 0x4 != 0))
    }

    fn between(&self, a: i32, b: i32) -> Option<LinkId> {
        let (a, b) = (self.package(a)?, self.package(b)?);
        (a != b).then_some(2 * self.nodes.len() + a * self.packages + b)
    }

    /// Route from a GPU to near host memory (`to_host`) or back.
    pub fn host_route(&self, gpu: usize, to_host: bool) -> Route {
        let (_, chain) = self.chain(self.gpu_nodes[gpu]);
        let links: Vec<LinkId> = chain
            .iter()
            .map(|&n| if to_host { Self::up(n) } else { Self::down(n) })
            .collect();
        let limit = links
            .iter()
            .map(|&l| self.capacity_of(l))
            .fold(f64::INFINITY, f64::min)
            * 0.96;
        Route { links, limit }
    }

    /// Route of a copy that the driver stages through host memory.
    pub fn staged_route(&self, source: usize, destination: usize) -> Route {
        let (mut up, down) = (
            self.host_route(source, true),
            self.host_route(destination, false),
        );
        let limit = self
            .scenario
            .rates
            .staged_gbps
            .min(up.limit)
            .min(down.limit);
        up.links.extend(down.links);
        up.links.extend(self.between(
            self.numa(self.gpu_nodes[source]),
            self.numa(self.gpu_nodes[destination]),
        ));
        Route {
            links: up.links,
            limit,
        }
    }
}
