//! The interval map against a model that keeps every use of every byte, on random programs of a few streams.

use proptest::prelude::*;

use super::*;

/// A stream's clock, a shadow, and numbers for the work.
struct Program {
    shadow: Shadow,
    clocks: Vec<VectorClock>,
    ops: u64,
}

impl Program {
    fn new(actors: usize) -> Self {
        Self { shadow: Shadow::new(), clocks: vec![VectorClock::new(); actors], ops: 0 }
    }

    fn access(&mut self, actor: usize, range: Range<u64>, kind: AccessKind) -> Vec<Conflict> {
        let who = Actor(actor as u32);
        let time = self.clocks[actor].tick(who);
        self.ops += 1;
        self.shadow.access(range, kind, who, time, &self.clocks[actor], OpId(self.ops))
    }

    /// `actor` waits for all that `other` did so far.
    fn wait(&mut self, actor: usize, other: usize) {
        let known = self.clocks[other].clone();
        self.clocks[actor].join(&known);
    }
}

use AccessKind::{Atomic, Read, Write};

#[test]
fn reuse_in_another_stream_is_a_conflict_until_it_waits() {
    let mut program = Program::new(2);
    assert_eq!(program.access(0, 0..100, Write), []);
    let conflicts = program.access(1, 50..150, Write);
    assert_eq!(conflicts.len(), 1);
    assert_eq!(conflicts[0].range, 50..100);
    assert_eq!((conflicts[0].earlier.kind, conflicts[0].earlier.op), (Write, OpId(1)));

    program.wait(0, 1);
    assert_eq!(program.access(0, 0..150, Write), []);
}

#[test]
fn readers_do_not_hinder_each_other_but_hinder_a_writer() {
    let mut program = Program::new(3);
    assert_eq!(program.access(0, 0..10, Read), []);
    assert_eq!(program.access(1, 0..10, Read), []);
    program.wait(2, 1);
    let conflicts = program.access(2, 0..10, Write);
    assert_eq!(conflicts.len(), 1, "only the reader that was not waited for");
    assert_eq!(conflicts[0].earlier.actor, Actor(0));
}

#[test]
fn atomics_do_not_hinder_each_other_but_all_others() {
    let mut program = Program::new(3);
    assert_eq!(program.access(0, 0..4, Atomic), []);
    assert_eq!(program.access(1, 0..4, Atomic), []);
    assert_eq!(program.access(2, 0..4, Read).len(), 2);
    assert_eq!(program.access(0, 0..4, Atomic).len(), 1, "the read of stream 2");
}

#[test]
fn a_mistake_is_reported_once() {
    let mut program = Program::new(2);
    program.access(0, 0..10, Write);
    assert_eq!(program.access(1, 0..10, Write).len(), 1);
    assert_eq!(program.access(1, 0..10, Write), []);
}

#[test]
fn forgotten_memory_is_new_and_takes_no_room() {
    let mut program = Program::new(2);
    program.access(0, 0..100, Write);
    program.shadow.forget(40..60);
    assert_eq!(program.access(1, 40..60, Write), []);
    program.shadow.forget(0..1000);
    assert_eq!(program.shadow.intervals(), 0);
}

#[test]
fn equal_neighbours_become_one() {
    let mut program = Program::new(1);
    for at in [0, 200, 100, 300] {
        program.access(0, at..at + 100, Write);
    }
    assert_eq!(program.shadow.intervals(), 4, "four ops, four intervals");
    program.access(0, 0..400, Write);
    assert_eq!(program.shadow.intervals(), 1);
    assert_eq!(program.shadow.last_uses(10..20).len(), 1);
    assert_eq!(program.shadow.last_uses(10..20)[0].range, 10..20);
    assert_eq!(program.shadow.last_uses(400..500), []);
}

#[test]
fn the_ends_of_the_address_space_and_empty_ranges_are_fine() {
    let mut program = Program::new(1);
    assert_eq!(program.access(0, 7..7, Write), []);
    program.access(0, 0..u64::MAX, Write);
    program.access(0, u64::MAX - 1..u64::MAX, Read);
    assert_eq!(program.shadow.intervals(), 2);
    program.shadow.forget(5..5);
    assert_eq!(program.shadow.intervals(), 2);
}

const ACTORS: usize = 4;
const BYTES: u64 = 48;

#[derive(Clone, Debug)]
enum Step {
    Access(usize, Range<u64>, AccessKind),
    Wait(usize, usize),
    Forget(Range<u64>),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let range = || (0..BYTES, 0..BYTES).prop_map(|(a, b)| a.min(b)..a.max(b));
    let kind = prop_oneof![2 => Just(Read), 2 => Just(Write), 1 => Just(Atomic)];
    let step = prop_oneof![
        6 => (0..ACTORS, range(), kind).prop_map(|(actor, range, kind)| Step::Access(actor, range, kind)),
        4 => (0..ACTORS, 0..ACTORS).prop_map(|(actor, other)| Step::Wait(actor, other)),
        1 => range().prop_map(Step::Forget),
    ];
    proptest::collection::vec(step, 0..60)
}

/// Every use of one byte since its last write, none thinned out.
#[derive(Clone, Default)]
struct NaiveByte(Vec<Use>);

impl NaiveByte {
    fn access(&mut self, new: Use, clock: &VectorClock) -> Vec<Use> {
        let needs_order = |old: &Use| old.kind == Write || new.kind == Write || old.kind != new.kind;
        let unordered = |old: &&Use| needs_order(old) && !clock.covers(old.actor, old.time);
        let conflicts = self.0.iter().filter(unordered).copied().collect();
        if new.kind == Write {
            self.0.clear();
        }
        self.0.push(new);
        conflicts
    }
}

fn assert_tidy(shadow: &Shadow) {
    let intervals: Vec<_> = shadow.intervals.iter().collect();
    for (start, interval) in &intervals {
        assert!(**start < interval.end);
        assert!(interval.uses.iter().next().is_some());
        let owners: Vec<_> = interval.uses.since.iter().map(|used| (used.actor, used.kind)).collect();
        assert!(owners.is_sorted_by(|a, b| a < b), "one read and one atomic an actor");
    }
    for pair in intervals.windows(2) {
        assert!(pair[0].1.end <= *pair[1].0, "disjoint");
        assert!(pair[0].1.end < *pair[1].0 || pair[0].1.uses != pair[1].1.uses, "merged");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// The thinned-out uses find a conflict on exactly the bytes where all uses would: each that is reported is real, and
    /// where there is one of a kind, one of that kind is reported.
    #[test]
    fn conflicts_are_found_on_exactly_the_bytes_where_a_full_history_has_them(steps in steps()) {
        let mut program = Program::new(ACTORS);
        let mut naive = vec![NaiveByte::default(); BYTES as usize];
        for step in steps {
            match step {
                Step::Wait(actor, other) => program.wait(actor, other),
                Step::Forget(range) => {
                    program.shadow.forget(range.clone());
                    range.for_each(|byte| naive[byte as usize] = NaiveByte::default());
                }
                Step::Access(actor, range, kind) => {
                    let found = program.access(actor, range.clone(), kind);
                    let is_inside = |one: &Conflict| range.start <= one.range.start && one.range.end <= range.end;
                    prop_assert!(found.iter().all(|one| !one.range.is_empty() && is_inside(one)));
                    let clock = &program.clocks[actor];
                    let who = Actor(actor as u32);
                    let new = Use { kind, actor: who, time: clock.get(who), op: OpId(program.ops) };
                    for byte in range {
                        let real = naive[byte as usize].access(new, clock);
                        let here: Vec<_> =
                            found.iter().filter(|one| one.range.contains(&byte)).map(|one| one.earlier).collect();
                        prop_assert!(here.iter().all(|one| real.contains(one)));
                        for kind in [Read, Write, Atomic] {
                            let has = |uses: &[Use]| uses.iter().any(|used| used.kind == kind);
                            prop_assert_eq!(has(&here), has(&real), "{:?} of byte {}", kind, byte);
                        }
                    }
                }
            }
            assert_tidy(&program.shadow);
        }
        for byte in 0..BYTES {
            for last in program.shadow.last_uses(byte..byte + 1) {
                prop_assert!(naive[byte as usize].0.contains(&last.earlier));
            }
            let used = !naive[byte as usize].0.is_empty();
            prop_assert_eq!(program.shadow.last_uses(byte..byte + 1).is_empty(), !used);
        }
    }
}
