//! PCI addresses and ids as scenario files write them.
use std::fmt;

/// Domain, bus, device and function of a PCI function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PciAddress {
    /// PCI domain (segment).
    pub domain: u32,
    /// Bus number.
    pub bus: u8,
    /// Device number, 0 to 31.
    pub device: u8,
    /// Function number, 0 to 7.
    pub function: u8,
}

impl PciAddress {
    /// Reads `DDDD:BB:DD.F`, with a domain of 4 to 8 hexadecimal digits (NVML writes 8, sysfs 4).
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.trim().split(':');
        let (domain, bus, rest) = (parts.next()?, parts.next()?, parts.next()?);
        if parts.next().is_some() || domain.len() < 4 || domain.len() > 8 {
            return None;
        }
        let (device, function) = rest.split_once('.')?;
        let address = Self {
            domain: u32::from_str_radix(domain, 16).ok()?,
            bus: u8::from_str_radix(bus, 16).ok()?,
            device: u8::from_str_radix(device, 16).ok()?,
            function: function.parse().ok()?,
        };
        (address.device < 32 && address.function < 8).then_some(address)
    }

    /// The spelling of NVML: eight digits of domain, upper case.
    pub fn nvml(&self) -> String {
        format!(
            "{:08X}:{:02X}:{:02X}.{:X}",
            self.domain, self.bus, self.device, self.function
        )
    }
}

impl fmt::Display for PciAddress {
    /// The spelling of sysfs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:04x}:{:02x}:{:02x}.{:x}",
            self.domain, self.bus, self.device, self.function
        )
    }
}

/// Reads `vvvv:dddd`.
pub fn parse_id(text: &str) -> Option<(u16, u16)> {
    let (vendor, device) = text.split_once(':')?;
    Some((
        u16::from_str_radix(vendor, 16).ok()?,
        u16::from_str_radix(device, 16).ok()?,
    ))
}

/// Transfer rate of a PCIe generation in GT/s, as sysfs prints it.
pub fn transfer_rate(generation: u32) -> &'static str {
    match generation {
        1 => "2.5",
        2 => "5.0",
        3 => "8.0",
        4 => "16.0",
        5 => "32.0",
        _ => "64.0",
    }
}

/// Bytes per nanosecond (GB/s) of one direction after line coding: 8b/10b up to generation 2, 128b/130b up to 5,
/// 242 of 256 bytes of a flit in generation 6.
pub fn coded_rate(generation: u32, width: u32) -> f64 {
    let lane = match generation {
        1 => 2.5 * 0.8,
        2 => 5.0 * 0.8,
        3 => 8.0 * 128.0 / 130.0,
        4 => 16.0 * 128.0 / 130.0,
        5 => 32.0 * 128.0 / 130.0,
        _ => 64.0 * 242.0 / 256.0,
    };
    lane / 8.0 * f64::from(width)
}

/// What is left of `coded_rate` for payload: about 24 bytes of overhead for each packet of 256 bytes.
pub fn payload_rate(generation: u32, width: u32) -> f64 {
    coded_rate(generation, width) * 256.0 / 280.0
}
