//! `headwater info`: what there is and why it was chosen.

use anyhow::Result;
use headwater::config::{Backing, Config};
use headwater::{HumanBytes, Opened};
use headwater_driver::{Capabilities, DeviceId};
use headwater_tiers::Survey;
use serde_json::json;

use crate::args::Common;
use crate::output::json_line;

pub(crate) fn run(options: &Common) -> Result<()> {
    let opened = headwater::open(options.device)?;
    let config = Config::from_env()?;
    for ordinal in 0..opened.driver.device_count() {
        let device = DeviceId(ordinal);
        let properties = opened.driver.device_properties(device)?;
        let memory = opened.driver.memory_info(device)?;
        let (backing, backing_why) = backing_on(&config, &properties.capabilities);
        let capabilities = capability_list(&properties.capabilities);
        if options.json {
            json_line(&json!({
                "backend": opened.driver.backend(),
                "version": opened.driver.version(),
                "device": ordinal,
                "chosen": device == opened.device,
                "why": opened.why,
                "name": properties.name,
                "total_bytes": memory.total_bytes,
                "free_bytes": memory.free_bytes,
                "compute_capability": [properties.compute_capability.0, properties.compute_capability.1],
                "multiprocessors": properties.multiprocessors,
                "pci_address": properties.pci_address,
                "backing": backing,
                "backing_why": backing_why,
                "capabilities": capabilities.iter().map(|(name, has)| (*name, *has)).collect::<std::collections::BTreeMap<_, _>>(),
            }));
            continue;
        }
        if ordinal == 0 {
            println!(
                "backend        {} ({}): {}",
                opened.driver.backend(),
                opened.driver.version(),
                opened.why
            );
        }
        let (major, minor) = properties.compute_capability;
        let mark = if device == opened.device { " (chosen)" } else { "" };
        println!("device {ordinal}       {}{mark}, {}", properties.name, properties.pci_address);
        println!(
            "  memory       {} of {} free",
            HumanBytes(memory.free_bytes),
            HumanBytes(memory.total_bytes)
        );
        println!("  compute      {major}.{minor}, {} multiprocessors", properties.multiprocessors);
        println!("  backing      {backing}: {backing_why}");
        for (name, has) in capabilities {
            println!("  {name:<20} {}", if has { "yes" } else { "no" });
        }
    }
    print_tiers(&opened, options.json)?;
    if !options.json {
        print_simulation_note(&opened);
    }
    Ok(())
}

/// What spills where: the spaces of this machine, how its disk is reached, and how to watch them.
fn print_tiers(opened: &Opened, json: bool) -> Result<()> {
    let lines = Survey::look(&*opened.driver, &[std::env::temp_dir()])?.lines();
    if json {
        json_line(&json!({ "tiers": lines.into_iter().collect::<std::collections::BTreeMap<_, _>>() }));
        return Ok(());
    }
    println!("tiers");
    for (space, text) in lines {
        println!("  {space:<12} {text}");
    }
    println!(
        "  metrics      `headwater demo --tiers --metrics PORT` serves Prometheus figures on this machine alone"
    );
    Ok(())
}

/// What the caching allocator stands on there by default, and why.
fn backing_on(config: &Config, capabilities: &Capabilities) -> (&'static str, &'static str) {
    let backing = config.backing().resolve(capabilities.virtual_memory);
    let why = match (config.backing(), capabilities.virtual_memory) {
        _ if !config.caching() => {
            return (Backing::Classic.name(), "caching_allocator is off: every request goes to the driver");
        }
        (Backing::Auto, true) => "the default where the device has virtual memory management",
        (Backing::Auto, false) => "the device or its driver has no virtual memory management",
        (Backing::Paged, false) => "set, but the device has no virtual memory management: it will be refused",
        _ => "set by the configuration",
    };
    (backing.name(), why)
}

fn print_simulation_note(opened: &Opened) {
    if opened.sim.is_some() {
        println!(
            "\nThe simulated device keeps CUDA's rules and an H200's costs on virtual time; it runs no GPU code."
        );
    }
}

fn capability_list(capabilities: &Capabilities) -> [(&'static str, bool); 5] {
    [
        ("virtual_memory", capabilities.virtual_memory),
        ("capture", capabilities.capture),
        ("host_pinning", capabilities.host_pinning),
        ("peer_access", capabilities.peer_access),
        ("shareable_handles", capabilities.shareable_handles),
    ]
}
