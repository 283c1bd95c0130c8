//! What tiers this machine can have, and how its disks would be reached: for people, before anything is set up.

use std::path::PathBuf;

use headwater::HumanBytes;
use headwater_driver::Driver;

use crate::disk::{Attempt, DiskError, DiskOptions, IoChoice, IoDescription, open_io};
use crate::error::TierError;
use crate::manager::Topology;
use crate::tier::SpaceId;

/// A machine looked at.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Survey {
    /// Its devices, nodes and the mounts asked about.
    pub topology: Topology,
    /// How each of the mounts would be reached, in their order.
    pub disks: Vec<DiskSurvey>,
}

/// A mount tried out.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DiskSurvey {
    /// The best way that works there, or why none does.
    pub way: Result<IoDescription, DiskError>,
    /// Better ways that do not work there, and why.
    pub tried: Vec<Attempt>,
}

impl Survey {
    /// Looks at the machine, and tries a small transfer there and back on each mount.
    ///
    /// ```
    /// use headwater_tiers::Survey;
    /// # let driver = headwater_sim::SimDriver::new();
    /// for (name, text) in Survey::look(&*driver, &[std::env::temp_dir()])?.lines() {
    ///     println!("{name:<14} {text}");
    /// }
    /// # Ok::<(), headwater_tiers::TierError>(())
    /// ```
    ///
    /// # Errors
    /// As [`Topology::discover`].
    pub fn look(driver: &dyn Driver, mounts: &[PathBuf]) -> Result<Self, TierError> {
        let topology = Topology::discover(driver, mounts)?;
        let try_out = |mount: &PathBuf| match open_io(mount, IoChoice::Best, DiskOptions::default().depth) {
            Ok((io, tried)) => DiskSurvey { way: Ok(io.describe()), tried },
            Err(error) => DiskSurvey { way: Err(error), tried: Vec::new() },
        };
        Ok(Self { disks: mounts.iter().map(try_out).collect(), topology })
    }

    /// A line a space: its name, and what there is to say of it.
    pub fn lines(&self) -> Vec<(String, String)> {
        let mut lines = Vec::new();
        for gpu in &self.topology.gpus {
            let node = gpu.numa_node.map_or_else(String::new, |node| format!(", next to node {node}"));
            lines.push((
                SpaceId::gpu(gpu.device).to_string(),
                format!("{}{node}", HumanBytes(gpu.total_bytes)),
            ));
        }
        for node in &self.topology.nodes {
            lines.push((SpaceId::host(node.node).to_string(), HumanBytes(node.total_bytes).to_string()));
        }
        for (place, (mount, disk)) in (0..).zip(self.topology.mounts.iter().zip(&self.disks)) {
            let (free, path) = (HumanBytes(mount.free_bytes), mount.path.display());
            let mut text = match &disk.way {
                Ok(way) => format!("{free} free in {path}, {way}"),
                Err(error) => format!("{free} free in {path}, of no use: {error}"),
            };
            for attempt in &disk.tried {
                text.push_str(&format!("; {:?} does not work: {}", attempt.choice, attempt.why));
            }
            lines.push((SpaceId::disk(place).to_string(), text));
        }
        lines
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn every_space_has_a_line_and_the_disk_says_how_it_is_reached() {
        let sim = headwater_sim::SimDriver::new();
        let lines = Survey::look(&*sim, &[std::env::temp_dir()]).unwrap().lines();
        let text = |name: &str| lines.iter().find(|(space, _)| space == name).map(|(_, text)| text.clone());
        assert!(text("GPU 0").is_some() && text("HOST node 0").is_some(), "{lines:?}");
        let disk = text("DISK mount 0").unwrap();
        assert!(disk.contains("io_uring") || disk.contains("threads"), "{disk}");
        assert!(Survey::look(&*sim, &["/nowhere at all".into()]).is_err());
    }
}
