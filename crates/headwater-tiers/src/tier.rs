//! Tiers and the places in them.

use std::fmt;

use headwater_driver::DeviceId;

/// A kind of memory, fastest first. The order of the variants is the order of the tiers: a lower tier compares greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tier {
    /// Device memory.
    Gpu,
    /// Pinned host memory.
    Host,
    /// Files.
    Disk,
}

impl Tier {
    /// All tiers, fastest first.
    pub const ALL: [Self; 3] = [Self::Gpu, Self::Host, Self::Disk];

    /// The tiers below this one, nearest first.
    pub fn below(self) -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(move |tier| *tier > self)
    }

    /// The tiers above this one, fastest first: data that moves up is wanted where it is used.
    pub fn above(self) -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(move |tier| *tier < self)
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gpu => "GPU",
            Self::Host => "HOST",
            Self::Disk => "DISK",
        })
    }
}

/// The name of a space: one tier at one place.
///
/// ```
/// use headwater_driver::DeviceId;
/// use headwater_tiers::SpaceId;
/// assert_eq!(SpaceId::gpu(DeviceId(1)).to_string(), "GPU 1");
/// assert_eq!(SpaceId::host(0).to_string(), "HOST node 0");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SpaceId {
    tier: Tier,
    place: u32,
}

impl SpaceId {
    /// The memory of a device.
    pub const fn gpu(device: DeviceId) -> Self {
        Self { tier: Tier::Gpu, place: device.0 }
    }

    /// Host memory of a NUMA node.
    pub const fn host(node: u32) -> Self {
        Self { tier: Tier::Host, place: node }
    }

    /// The mount with this number, in the order of the configuration.
    pub const fn disk(mount: u32) -> Self {
        Self { tier: Tier::Disk, place: mount }
    }

    /// The tier.
    pub const fn tier(self) -> Tier {
        self.tier
    }

    /// The device's ordinal, the node's number or the mount's number.
    pub const fn place(self) -> u32 {
        self.place
    }
}

impl fmt::Display for SpaceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.tier {
            Tier::Gpu => write!(f, "GPU {}", self.place),
            Tier::Host => write!(f, "HOST node {}", self.place),
            Tier::Disk => write!(f, "DISK mount {}", self.place),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn down_is_nearest_first_and_up_is_fastest_first() {
        assert_eq!(Tier::Gpu.below().collect::<Vec<_>>(), [Tier::Host, Tier::Disk]);
        assert_eq!(Tier::Disk.above().collect::<Vec<_>>(), [Tier::Gpu, Tier::Host]);
        assert_eq!(Tier::Disk.below().count() + Tier::Gpu.above().count(), 0);
    }
}
