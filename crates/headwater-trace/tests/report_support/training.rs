//! A made-up training program, as a trace.

use headwater_trace::{Event, LabelId, StreamId, Trace};

use super::MIB;

/// A made-up training program of at least `events` events: layers forward and back with lengths that change each step, call
/// stacks, a copy stream whose gives-back wait, and a label that tries to break out of the page.
pub fn training(events: usize) -> Trace {
    let mut program = Program { trace: Trace::new("training </script>"), next_id: 0, t_us: 0, seed: 7 };
    let weights = program.stack(&["main", "Model.__init__", "Linear.reset_parameters"]);
    for layer in 0..24 {
        program.alloc((4 + layer % 5) * 3 * MIB, weights, 0);
    }
    let hostile =
        program.trace.names.text("</script><script>document.title = 'broken'</script>{{meta}}").unwrap();
    program.alloc(777_777, hostile, 0);
    let mut step = 0;
    while program.trace.events.len() < events {
        program.step(step);
        step += 1;
    }
    program.trace
}

struct Program {
    trace: Trace,
    next_id: u64,
    t_us: u64,
    seed: u64,
}

impl Program {
    fn step(&mut self, step: u64) {
        let mark = self.trace.names.text(&format!("step {step}")).unwrap();
        self.trace.events.push(Event::Annotation { label: mark, t_us: self.t_us, device: 0 });
        let length = 64 + self.random() % 448;
        let mut kept = Vec::new();
        for layer in 0..24 {
            let forward = format!("Block.forward [{layer}]");
            for (op, factor) in [("Attention.forward", 3), ("MLP.forward", 4), ("LayerNorm.forward", 1)] {
                let label = self.stack(&["main", "train_step", "Model.forward", &forward, op]);
                let bytes = length * factor * 8192 + self.random() % 5 * 1000;
                kept.push(self.alloc(bytes, label, 0));
                let scratch = self.alloc(length * 2048, label, 0);
                self.free(scratch, false);
            }
            if layer % 6 == 0 {
                let label = self.stack(&["main", "train_step", "Loader.prefetch"]);
                let staged = self.alloc(5 * MIB + length * 512, label, 1);
                self.free(staged, true);
            }
        }
        while let Some(id) = kept.pop() {
            let label = self.stack(&["main", "train_step", "Tensor.backward", "grad"]);
            let grad = self.alloc(length * 4096, label, 0);
            self.free(id, false);
            self.free(grad, false);
            // A few results outlive their step, as logged losses do: they are what splits memory.
            if self.random().is_multiple_of(40) && self.next_id < 30_000 {
                let kept_label = self.stack(&["main", "train_step", "Metrics.append"]);
                let bytes = 20_000 + self.random() % 200_000;
                self.alloc(bytes, kept_label, 0);
            }
        }
    }

    fn random(&mut self) -> u64 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.seed >> 33
    }

    fn stack(&mut self, functions: &[&str]) -> LabelId {
        let names = &mut self.trace.names;
        let mut frames: Vec<_> = (10u32..)
            .step_by(7)
            .zip(functions)
            .map(|(line, f)| names.frame("train.py", line, f).unwrap())
            .collect();
        frames.reverse();
        names.stack(&frames).unwrap()
    }

    fn alloc(&mut self, bytes: u64, label: LabelId, stream: u64) -> u64 {
        let stream = self.trace.names.stream(stream).unwrap();
        let id = self.next_id;
        self.next_id += 1;
        self.t_us += 3 + self.random() % 40;
        self.trace.events.push(Event::Alloc { id, bytes, t_us: self.t_us, label, stream, device: 0 });
        id
    }

    /// A give-back that waits is completed seven events later at the earliest: here, after one more small request.
    fn free(&mut self, id: u64, waits: bool) {
        self.t_us += 2;
        let (label, stream, device) = (LabelId::NONE, StreamId(u16::from(waits)), 0);
        self.trace.events.push(Event::Free { id, t_us: self.t_us, label, stream, device });
        if waits {
            let scratch = self.alloc(4096, LabelId::NONE, 0);
            self.free(scratch, false);
            self.trace.events.push(Event::Complete { id, t_us: self.t_us, device: 0 });
        }
    }
}
