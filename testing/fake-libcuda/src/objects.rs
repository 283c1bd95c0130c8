//! What callers hold by an opaque value, and what stands for it in the simulator.
//!
//! A value is given out once and never again, so the use of a destroyed object is always told from the use of a new
//! one. libcuda reuses its addresses and cannot tell.

use std::collections::{BTreeMap, BTreeSet};

use headwater_driver::{DeviceId, Event, Graph, GraphExec, Handle, Kernel, Module, Stream};

use crate::abi::CUmemAllocationProp;

/// All live objects of one kind.
#[derive(Debug)]
pub(crate) struct Registry<T> {
    live: BTreeMap<u64, T>,
    next: u64,
}

/// Values look like heap addresses: the next of a kind is a cache line further on.
const STEP: u64 = 64;

impl<T> Registry<T> {
    /// An empty registry whose values start in a range of their own: one kind is never taken for another.
    const fn numbered_from(first: u64) -> Self {
        Self { live: BTreeMap::new(), next: first }
    }

    /// Adds an object and returns the value for it.
    pub(crate) fn insert(&mut self, object: T) -> u64 {
        let value = self.next;
        self.next += STEP;
        self.live.insert(value, object);
        value
    }

    /// The live object with this value.
    pub(crate) fn get(&self, value: u64) -> Option<&T> {
        self.live.get(&value)
    }

    /// The same, to change it.
    pub(crate) fn get_mut(&mut self, value: u64) -> Option<&mut T> {
        self.live.get_mut(&value)
    }

    /// Ends an object's life.
    pub(crate) fn remove(&mut self, value: u64) -> Option<T> {
        self.live.remove(&value)
    }

    /// Ends the life of every object that matches, and returns them.
    pub(crate) fn take(&mut self, matches: impl Fn(&T) -> bool) -> Vec<T> {
        let values: Vec<u64> =
            self.live.iter().filter(|(_, object)| matches(object)).map(|(v, _)| *v).collect();
        values.iter().filter_map(|value| self.live.remove(value)).collect()
    }

    /// The value of the first object that matches.
    pub(crate) fn find(&self, matches: impl Fn(&T) -> bool) -> Option<u64> {
        self.live.iter().find(|(_, object)| matches(object)).map(|(value, _)| *value)
    }

    /// All live objects with their values.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.live.iter().map(|(value, object)| (*value, object))
    }

    /// How many are alive.
    pub(crate) fn len(&self) -> u64 {
        self.live.len() as u64
    }
}

/// A stream somebody made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamObject {
    pub(crate) stream: Stream,
    /// The flags and priority it was made with, for the calls that read them back.
    pub(crate) flags: u32,
    pub(crate) priority: i32,
}

/// Physical memory. The simulator's handle is held until neither the caller nor a mapping holds it, so that
/// `cuMemRetainAllocationHandle` can give a released but mapped handle back, as libcuda does.
#[derive(Clone, Copy)]
pub(crate) struct HandleObject {
    pub(crate) handle: Handle,
    pub(crate) properties: CUmemAllocationProp,
    /// How often the caller holds it: one for `cuMemCreate`, one for each `cuMemRetainAllocationHandle`.
    pub(crate) holds: u64,
    /// How often it is mapped.
    pub(crate) mappings: u64,
}

// SAFETY: the pointer in the properties is kept as the caller gave it and never followed.
unsafe impl Send for HandleObject {}

/// A kernel of a loaded module.
#[derive(Clone, Debug)]
pub(crate) struct KernelObject {
    pub(crate) kernel: Kernel,
    /// The value of the module it lives and dies with.
    pub(crate) module: u64,
    pub(crate) name: String,
}

/// All objects. One lock guards them; it is never held across a call into the simulator.
pub(crate) struct Objects {
    pub(crate) streams: Registry<StreamObject>,
    pub(crate) events: Registry<Event>,
    pub(crate) handles: Registry<HandleObject>,
    pub(crate) graphs: Registry<Graph>,
    pub(crate) graph_execs: Registry<GraphExec>,
    /// Graphs, runnable or not, that a call is using right now.
    pub(crate) graphs_in_use: BTreeSet<u64>,
    /// The lists of nodes that callers were given, by stream.
    pub(crate) frontiers: BTreeMap<Stream, Box<[u64]>>,
    pub(crate) modules: Registry<Module>,
    pub(crate) kernels: Registry<KernelObject>,
    /// Objects that a context took with it when it was destroyed: their owner forgot them.
    pub(crate) abandoned: u64,
}

impl Objects {
    /// No objects yet.
    pub(crate) const fn new() -> Self {
        Self {
            streams: Registry::numbered_from(0x7f01_0000_0000),
            events: Registry::numbered_from(0x7f02_0000_0000),
            handles: Registry::numbered_from(0x7f03_0000_0000),
            graphs: Registry::numbered_from(0x7f04_0000_0000),
            graph_execs: Registry::numbered_from(0x7f05_0000_0000),
            graphs_in_use: BTreeSet::new(),
            frontiers: BTreeMap::new(),
            modules: Registry::numbered_from(0x7f06_0000_0000),
            kernels: Registry::numbered_from(0x7f07_0000_0000),
            abandoned: 0,
        }
    }

    /// Objects that their owner has not destroyed. Kernels have no owner but their module.
    pub(crate) fn leaked(&self) -> u64 {
        let held = self.handles.iter().filter(|(_, handle)| handle.holds > 0).count() as u64;
        self.streams.len()
            + self.events.len()
            + held
            + self.graphs.len()
            + self.graph_execs.len()
            + self.modules.len()
            + self.abandoned
    }

    /// Takes out what lives in the context of `device`.
    pub(crate) fn take_of(&mut self, device: DeviceId) -> (Vec<StreamObject>, Vec<Event>, Vec<Module>) {
        let streams = self.streams.take(|object| object.stream.device() == device);
        let events = self.events.take(|event| event.device() == device);
        let modules = self.modules.take(|module| module.device() == device);
        self.kernels.take(|object| object.kernel.device() == device);
        self.abandoned += (streams.len() + events.len() + modules.len()) as u64;
        (streams, events, modules)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_never_given_out_twice() {
        let mut registry = Registry::numbered_from(0x1000);
        let first = registry.insert('a');
        assert_eq!(registry.remove(first), Some('a'));
        let second = registry.insert('b');
        assert_ne!(first, second);
        assert_eq!(registry.get(first), None);
        assert_eq!(registry.len(), 1);
    }
}
