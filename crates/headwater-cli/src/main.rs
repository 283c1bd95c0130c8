//! The command `headwater`: arguments in, one library call, a table or JSON lines out.

mod args;
mod byte_size;
mod commands;
mod model_comparison;
mod output;
mod replaying;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Arguments, Command};

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = match &arguments.command {
        Command::Demo(options) => commands::demo::run(options),
        Command::Replay(options) => commands::replay::run(options),
        Command::Report(options) => commands::report::run(options),
        Command::Bench(options) => commands::bench::run(options),
        Command::Info(options) => commands::info::run(options),
        Command::Conformance(options) => commands::conformance::run(options),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // `{:#}` puts the whole chain of causes into one line.
            eprintln!("headwater: {error:#}");
            ExitCode::FAILURE
        }
    }
}
