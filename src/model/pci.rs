//! PCI addresses and identities. The domain is 32 bits wide: Intel VMD and some clouds number domains above 0xffff.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// Domain, bus, device and function. Printed as sysfs does (`0000:17:00.0`); NVML's eight-digit domain parses too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
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

/// Text that is not a PCI address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is not a PCI address (expected DOMAIN:BUS:DEVICE.FUNCTION in hexadecimal, as 0000:17:00.0)"
)]
pub struct PciAddressError(pub String);

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:04x}:{:02x}:{:02x}.{:x}",
            self.domain, self.bus, self.device, self.function
        )
    }
}

impl FromStr for PciAddress {
    type Err = PciAddressError;

    /// Accepts `BUS:DEV.FN`, `DOMAIN:BUS:DEV.FN` with 1 to 8 domain digits, and a missing `.FN` (function 0).
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || PciAddressError(text.chars().take(64).collect());
        let hex = |part: &str, digits: usize| -> Option<u32> {
            let plain = !part.is_empty()
                && part.len() <= digits
                && part.bytes().all(|b| b.is_ascii_hexdigit());
            plain.then(|| u32::from_str_radix(part, 16).ok()).flatten()
        };
        let trimmed = text.trim();
        let (front, function) = match trimmed.rsplit_once('.') {
            Some((front, function)) => (front, hex(function, 1).ok_or_else(bad)?),
            None => (trimmed, 0),
        };
        let parts: Vec<&str> = front.split(':').collect();
        let (domain, bus, device) = match parts.as_slice() {
            [bus, device] => (0, *bus, *device),
            [domain, bus, device] => (hex(domain, 8).ok_or_else(bad)?, *bus, *device),
            _ => return Err(bad()),
        };
        let (bus, device) = (
            hex(bus, 2).ok_or_else(bad)?,
            hex(device, 2).ok_or_else(bad)?,
        );
        if device > 31 || function > 7 {
            return Err(bad());
        }
        Ok(PciAddress {
            domain,
            bus: bus as u8,
            device: device as u8,
            function: function as u8,
        })
    }
}

impl Serialize for PciAddress {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PciAddress {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for PciAddress {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "PciAddress".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string",
            "pattern": "^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\\.[0-7]$",
        })
    }
}

/// Vendor, device and class of a PCI function. Lookups key on vendor and device together: device ids repeat across
/// vendors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PciIdentity {
    /// Vendor id, 0x10de for NVIDIA.
    pub vendor: u16,
    /// Device id.
    pub device: u16,
    /// Class code without the programming interface byte: 0x0302 is a 3D controller.
    pub class: u16,
}

/// NVIDIA's PCI vendor id.
pub const VENDOR_NVIDIA: u16 = 0x10de;

impl PciIdentity {
    /// An NVIDIA function of class VGA (0x0300) or 3D controller (0x0302).
    pub fn is_nvidia_gpu(&self) -> bool {
        self.vendor == VENDOR_NVIDIA && matches!(self.class, 0x0300 | 0x0302)
    }
}

/// A PCI Express link's state. Speeds are in GT/s per lane as sysfs words them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PcieLink {
    /// Rate per lane in GT/s: 2.5, 5, 8, 16, 32, 64.
    pub speed_gts: f64,
    /// Number of lanes.
    pub width: u32,
}

impl PcieLink {
    /// Generation 1 to 6 from the lane rate; `None` for a rate that no generation has.
    pub fn generation(&self) -> Option<u32> {
        let rates = [2.5, 5.0, 8.0, 16.0, 32.0, 64.0];
        rates
            .iter()
            .position(|r| (self.speed_gts - r).abs() < 0.05 * r)
            .map(|i| i as u32 + 1)
    }

    /// Ceiling in GB/s (1e9 bytes) per direction after line coding: 8b/10b below 8 GT/s, 128b/130b to 32 GT/s,
    /// 242/256 flits at 64 GT/s (facts: hwloc misc.h; PCIe base specification).
    pub fn ceiling_gb_per_s(&self) -> f64 {
        let coding = match self.speed_gts {
            s if s < 6.0 => 0.8,
            s if s < 48.0 => 128.0 / 130.0,
            _ => 242.0 / 256.0,
        };
        self.speed_gts * coding / 8.0 * f64::from(self.width)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_nvml_cuda_and_sysfs_are_one() {
        let nvml: PciAddress = "00000000:17:00.0".parse().unwrap();
        assert_eq!(nvml, "0000:17:00.0".parse().unwrap());
        assert_eq!(nvml, "17:00.0".parse().unwrap());
        assert_eq!(nvml.to_string(), "0000:17:00.0");
        assert_eq!(
            "10000:e1:00.0".parse::<PciAddress>().unwrap().to_string(),
            "10000:e1:00.0"
        );
        for bad in [
            "",
            "0000:01.0",
            "17:20.0",
            "zz:00.0",
            "0000:17:00.9",
            "1:2:3:4.0",
            "0000:+7:00.0",
        ] {
            assert!(bad.parse::<PciAddress>().is_err(), "{bad}");
        }
    }

    #[test]
    fn gen5_x16_is_63_gb_per_s() {
        let link = PcieLink {
            speed_gts: 32.0,
            width: 16,
        };
        assert!((link.ceiling_gb_per_s() - 63.015).abs() < 0.01);
        assert_eq!(link.generation(), Some(5));
    }
}
