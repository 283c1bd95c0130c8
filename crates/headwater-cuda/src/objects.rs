//! The objects in the registries: the driver's own value, the context it lives in, and how it is destroyed.
//!
//! Each holds its context, so the context outlives it whatever is dropped first.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::abi::{CuEvent, CuFunction, CuGraph, CuGraphExec, CuMemHandle, CuModule, CuResult, CuStream};
use crate::context::PrimaryContext;
use crate::registry::Native;

/// A stream, ours or adopted.
#[derive(Debug)]
pub(crate) struct StreamObject {
    pub(crate) context: Arc<PrimaryContext>,
    pub(crate) raw: CuStream,
    /// Somebody else made it and will destroy it.
    pub(crate) adopted: bool,
}

impl Native for StreamObject {
    fn destroy(&self) -> CuResult {
        if self.adopted {
            return CuResult::SUCCESS;
        }
        // SAFETY: we made the stream, and no call uses it any more.
        self.context.run(|cuda| unsafe { (cuda.stream_destroy)(self.raw) })
    }
}

/// An event.
#[derive(Debug)]
pub(crate) struct EventObject {
    pub(crate) context: Arc<PrimaryContext>,
    pub(crate) raw: CuEvent,
}

impl Native for EventObject {
    fn destroy(&self) -> CuResult {
        // SAFETY: we made the event, and no call uses it any more.
        self.context.run(|cuda| unsafe { (cuda.event_destroy)(self.raw) })
    }
}

/// Physical memory. Destroying drops our hold; what is mapped stays until it is unmapped.
#[derive(Debug)]
pub(crate) struct HandleObject {
    pub(crate) context: Arc<PrimaryContext>,
    pub(crate) raw: CuMemHandle,
    pub(crate) bytes: u64,
    /// Whether it was made so that it can be exported.
    pub(crate) exportable: bool,
}

impl Native for HandleObject {
    fn destroy(&self) -> CuResult {
        // SAFETY: we made the handle, and no call uses it any more.
        self.context.run(|cuda| unsafe { (cuda.mem_release)(self.raw) })
    }
}

/// A captured graph.
#[derive(Debug)]
pub(crate) struct GraphObject {
    pub(crate) context: Arc<PrimaryContext>,
    pub(crate) raw: CuGraph,
    /// Held across the calls that use the graph. CUDA does not synchronise graphs inside: two calls on the same one at
    /// once are undefined behaviour. The lock is this graph's own, and nobody else waits for it.
    pub(crate) turn: Mutex<()>,
}

impl Native for GraphObject {
    fn destroy(&self) -> CuResult {
        // SAFETY: we made the graph, and no call uses it any more.
        self.context.run(|cuda| unsafe { (cuda.graph_destroy)(self.raw) })
    }
}

/// A runnable graph.
#[derive(Debug)]
pub(crate) struct GraphExecObject {
    pub(crate) context: Arc<PrimaryContext>,
    pub(crate) raw: CuGraphExec,
    /// As [`GraphObject::turn`].
    pub(crate) turn: Mutex<()>,
}

impl Native for GraphExecObject {
    fn destroy(&self) -> CuResult {
        // SAFETY: we made it, and no call uses it any more.
        self.context.run(|cuda| unsafe { (cuda.graph_exec_destroy)(self.raw) })
    }
}

/// A module, and the kernels that were asked for, by name.
#[derive(Debug)]
pub(crate) struct ModuleObject {
    pub(crate) context: Arc<PrimaryContext>,
    pub(crate) raw: CuModule,
    pub(crate) kernels: Mutex<BTreeMap<String, u64>>,
}

impl Native for ModuleObject {
    fn destroy(&self) -> CuResult {
        // SAFETY: we loaded the module, and no call uses it or a kernel of it any more.
        self.context.run(|cuda| unsafe { (cuda.module_unload)(self.raw) })
    }
}

/// A kernel: good for as long as its module is in the registry.
#[derive(Debug)]
pub(crate) struct KernelObject {
    /// The module's number.
    pub(crate) module: u64,
    pub(crate) raw: CuFunction,
}
