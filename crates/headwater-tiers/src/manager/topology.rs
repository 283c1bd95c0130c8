//! What a machine has: devices, NUMA nodes, mounts; and what is near what.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use headwater_driver::{DeviceId, Driver};

use crate::error::TierError;

/// Where Linux tells about the machine.
const SYSTEM_ROOT: &str = "/";

/// A machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// Its GPUs.
    pub gpus: Vec<GpuPlace>,
    /// Its NUMA nodes that have memory; at least one.
    pub nodes: Vec<NodePlace>,
    /// The mounts that were asked about.
    pub mounts: Vec<MountPlace>,
}

/// One GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuPlace {
    /// Its id.
    pub device: DeviceId,
    /// All of its memory.
    pub total_bytes: u64,
    /// The node it is next to, where the system says.
    pub numa_node: Option<u32>,
}

/// One NUMA node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePlace {
    /// Its number.
    pub node: u32,
    /// All of its memory.
    pub total_bytes: u64,
}

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountPlace {
    /// A directory on it.
    pub path: PathBuf,
    /// The size of its file system.
    pub total_bytes: u64,
    /// What is free there for this user.
    pub free_bytes: u64,
}

impl Topology {
    /// Looks at this machine: the devices of `driver`, the nodes that Linux names, and the file systems of `mounts`.
    ///
    /// # Errors
    /// [`TierError::Driver`]; [`TierError::System`] for a mount that is not there.
    pub fn discover(driver: &dyn Driver, mounts: &[PathBuf]) -> Result<Self, TierError> {
        Self::discover_under(Path::new(SYSTEM_ROOT), driver, mounts)
    }

    /// The same, with the system's files under another root.
    pub(crate) fn discover_under(
        root: &Path,
        driver: &dyn Driver,
        mounts: &[PathBuf],
    ) -> Result<Self, TierError> {
        let gpus = (0..driver.device_count()).map(|ordinal| {
            let device = DeviceId(ordinal);
            let properties = driver.device_properties(device)?;
            let numa_node = node_of_pci_device(root, &properties.pci_address);
            Ok(GpuPlace { device, total_bytes: properties.total_bytes, numa_node })
        });
        Ok(Self {
            gpus: gpus.collect::<Result<_, TierError>>()?,
            nodes: numa_nodes(root),
            mounts: mounts.iter().map(|path| MountPlace::look_at(path)).collect::<Result<_, _>>()?,
        })
    }
}

impl MountPlace {
    /// Looks at the file system that `path` is on.
    ///
    /// # Errors
    /// [`TierError::System`].
    pub fn look_at(path: &Path) -> Result<Self, TierError> {
        let refused = |error: &io::Error| TierError::system(format!("looking at {}", path.display()), error);
        let name = std::ffi::CString::new(path.as_os_str().as_encoded_bytes())
            .map_err(|error| refused(&io::Error::new(io::ErrorKind::InvalidInput, error)))?;
        // SAFETY: all-zero is a valid value of this plain C structure.
        let mut stat: libc::statvfs = unsafe { std::mem::zeroed() };
        // SAFETY: the name ends in zero and the structure is ours; both outlive the call.
        if unsafe { libc::statvfs(name.as_ptr(), &raw mut stat) } != 0 {
            return Err(refused(&io::Error::last_os_error()));
        }
        let unit_bytes = stat.f_frsize;
        Ok(Self {
            path: path.to_owned(),
            total_bytes: stat.f_blocks.saturating_mul(unit_bytes),
            free_bytes: stat.f_bavail.saturating_mul(unit_bytes),
        })
    }
}

/// `-1`, or no such file, means that the system does not know.
fn node_of_pci_device(root: &Path, pci_address: &str) -> Option<u32> {
    let file = root.join("sys/bus/pci/devices").join(pci_address.to_ascii_lowercase()).join("numa_node");
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// The nodes that have memory. Where the system names none, it is all one node.
fn numa_nodes(root: &Path) -> Vec<NodePlace> {
    let mut nodes: Vec<NodePlace> = fs::read_dir(root.join("sys/devices/system/node"))
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let node = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
            let total_bytes = memory_total(&entry.path().join("meminfo"))?;
            Some(NodePlace { node, total_bytes })
        })
        .filter(|place| place.total_bytes > 0)
        .collect();
    if nodes.is_empty() {
        let total_bytes = memory_total(&root.join("proc/meminfo")).unwrap_or(0);
        nodes.push(NodePlace { node: 0, total_bytes });
    }
    nodes.sort_by_key(|place| place.node);
    nodes
}

/// `MemTotal` of a file in the format of `/proc/meminfo`, or of a node's, whose lines begin with the node's name.
fn memory_total(file: &Path) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.contains("MemTotal:"))?;
    let kib: u64 = line.split_once("MemTotal:")?.1.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use headwater_sim::SimDriver;

    use super::*;

    /// A machine with the given files.
    fn machine(name: &str, files: &[(&str, &str)]) -> PathBuf {
        let root = std::env::temp_dir().join(format!("headwater-topology-{}-{name}", std::process::id()));
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn nodes_and_what_is_next_to_them_are_found() {
        let root = machine(
            "two-nodes",
            &[
                (
                    "sys/devices/system/node/node1/meminfo",
                    "Node 1 MemTotal:  2048 kB\nNode 1 MemFree: 5 kB\n",
                ),
                ("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal:  1024 kB\n"),
                ("sys/devices/system/node/node2/meminfo", "Node 2 MemTotal:  0 kB\n"),
                ("sys/devices/system/node/possible", "0-2\n"),
                ("sys/bus/pci/devices/0000:01:00.0/numa_node", "1\n"),
                ("sys/bus/pci/devices/0000:02:00.0/numa_node", "-1\n"),
            ],
        );
        let sim = SimDriver::builder().devices(3).memory_bytes(1 << 30).build();
        let found = Topology::discover_under(&root, &*sim, std::slice::from_ref(&root)).unwrap();
        fs::remove_dir_all(&root).unwrap();
        let nodes: Vec<_> = found.nodes.iter().map(|place| (place.node, place.total_bytes)).collect();
        assert_eq!(nodes, [(0, 1 << 20), (1, 2 << 20)], "a node without memory is no place for any");
        let near: Vec<_> = found.gpus.iter().map(|gpu| gpu.numa_node).collect();
        assert_eq!(near, [Some(1), None, None]);
        assert_eq!(found.gpus[0].total_bytes, 1 << 30);
        assert!(found.mounts[0].total_bytes >= found.mounts[0].free_bytes);
    }

    #[test]
    fn a_machine_that_names_no_nodes_is_one_node() {
        let root = machine("no-nodes", &[("proc/meminfo", "MemTotal:       4096 kB\nMemFree: 1 kB\n")]);
        let found = Topology::discover_under(&root, &*SimDriver::new(), &[]).unwrap();
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(found.nodes, [NodePlace { node: 0, total_bytes: 4 << 20 }]);
    }

    #[test]
    fn a_mount_that_is_not_there_is_named() {
        let missing = PathBuf::from("/no/such/mount");
        let error = Topology::discover(&*SimDriver::new(), &[missing]).unwrap_err();
        assert!(error.to_string().contains("/no/such/mount"), "{error}");
    }
}
