//! The accounts of all spaces and the queue of those who wait: a pure state machine.
//!
//! A request names the spaces that would do, each with a rank; the lowest rank is the most wanted. It is served from
//! the most wanted rank that has room, and within a rank from the space with the most. What cannot be served waits in
//! one queue for all spaces, so it takes whichever comes free first.
//!
//! Order: first come, first served. A later request may *pass* an earlier one where the earlier does not fit and the
//! later does, so a large request does not stop small ones. Each grant from a space that an earlier waiter wants counts
//! as a pass of that waiter. After `passes_max` of them the waiter *closes* the spaces it wants: nothing is granted from
//! them to anyone behind it, and what is given back adds up until it fits. So nobody starves, and a request waits for at
//! most its elders and `passes_max` younger ones.
//!
//! What is allocated outside of reservations does not queue: it is measured against the capacity, which lies above the
//! limit for that purpose.
//!
//! A space whose limit is below the request is no candidate while that is so: it is neither closed nor counted. Where
//! that holds for all, the request can never be granted and is refused at once, also when a limit is lowered while it
//! waits.
//!
//! Every call that can make room ends with a pass over the queue and returns the tickets whose fate is decided; the
//! caller wakes exactly those. Nobody has to try again, so no wake-up can be swallowed by the wrong sleeper.

use std::collections::BTreeMap;
use std::time::Instant;

use smallvec::SmallVec;

use super::account::{Account, Charge};
use super::request::{
    AccountIndex, Answer, Ask, Candidate, Ceiling, Decided, Grant, Outcome, Refused, Ticket,
};

#[derive(Clone, Debug)]
struct Waiter {
    ticket: Ticket,
    ask: Ask,
    deadline: Option<Instant>,
    passes: u32,
}

/// See the head of the file.
#[derive(Debug)]
pub(crate) struct Book {
    accounts: Vec<Account>,
    /// In the order of arrival, and so of tickets.
    waiters: Vec<Waiter>,
    /// How waits ended that nobody has asked about yet.
    outcomes: BTreeMap<Ticket, Outcome>,
    next_ticket: u64,
    passes_max: u32,
    waiters_max: usize,
    is_shut_down: bool,
}

/// Accounts that nobody further back in the queue is served from.
type Closed = SmallVec<[bool; 8]>;

impl Book {
    pub(crate) fn new(passes_max: u32, waiters_max: usize) -> Self {
        Self {
            accounts: Vec::new(),
            waiters: Vec::new(),
            outcomes: BTreeMap::new(),
            next_ticket: 0,
            passes_max,
            waiters_max,
            is_shut_down: false,
        }
    }

    pub(crate) fn open_account(&mut self, account: Account) -> AccountIndex {
        self.accounts.push(account);
        self.accounts.len() - 1
    }

    pub(crate) fn account(&self, index: AccountIndex) -> &Account {
        &self.accounts[index]
    }

    /// How many requests wait for `index`, among others perhaps, and how many bytes they want from it.
    pub(crate) fn waiting_for(&self, index: AccountIndex) -> (usize, u64) {
        let account = &self.accounts[index];
        let waiting = self.waiters.iter().filter(|waiter| self.wants(waiter, index));
        waiting.fold((0, 0), |(count, bytes), waiter| {
            (count + 1, bytes.saturating_add(account.rounded(waiter.ask.bytes)))
        })
    }

    /// How many requests wait for anything.
    pub(crate) fn waiters(&self) -> usize {
        self.waiters.len()
    }

    /// Gives room now or puts the request into the queue, to be given up at `deadline`.
    pub(crate) fn ask(&mut self, ask: Ask, deadline: Option<Instant>) -> Result<Answer, Refused> {
        match self.try_ask(&ask) {
            Ok(grant) => return Ok(Answer::Granted(grant)),
            Err(Refused::NoRoom) => {}
            Err(refused) => return Err(refused),
        }
        if self.waiters.len() >= self.waiters_max {
            return Err(Refused::QueueFull { waiters_max: self.waiters_max });
        }
        let ticket = Ticket::from_number(self.next_ticket);
        self.next_ticket += 1;
        self.waiters.push(Waiter { ticket, ask, deadline, passes: 0 });
        // A waiter that may not be passed at all closes its spaces from the start; nobody is behind it yet.
        Ok(Answer::Waiting(ticket))
    }

    /// Gives room now, or says why not.
    pub(crate) fn try_ask(&mut self, ask: &Ask) -> Result<Grant, Refused> {
        self.check(ask)?;
        let grant = self.best_place(ask, &self.closed()).ok_or(Refused::NoRoom)?;
        self.give(grant, self.waiters.len());
        Ok(grant)
    }

    /// Gives up to `bytes` from one account: as much as there is, in whole granules, nothing while it is closed.
    pub(crate) fn ask_up_to(&mut self, account: AccountIndex, bytes: u64) -> Result<Grant, Refused> {
        if self.is_shut_down {
            return Err(Refused::ShutDown);
        }
        let from = &self.accounts[account];
        let room = if self.closed()[account] { 0 } else { from.reservable_bytes() };
        let bytes = from.rounded(bytes).min(room - room % from.granule_bytes);
        let grant = Grant { account, bytes };
        self.give(grant, self.waiters.len());
        Ok(grant)
    }

    /// Replaces what one holder takes from an account. Taking less always succeeds; taking more is measured against
    /// `ceiling`.
    pub(crate) fn recharge(
        &mut self,
        index: AccountIndex,
        from: Charge,
        to: Charge,
        ceiling: Ceiling,
    ) -> Result<Decided, Refused> {
        let more_bytes = to.total().saturating_sub(from.total());
        if more_bytes == 0 {
            self.accounts[index].replace(from, to);
            return Ok(if to.total() < from.total() { self.serve() } else { Decided::new() });
        }
        let account = &self.accounts[index];
        let room_bytes = match ceiling {
            Ceiling::Limit if self.is_shut_down => return Err(Refused::ShutDown),
            Ceiling::Limit if self.closed()[index] => 0,
            Ceiling::Limit => account.reservable_bytes(),
            Ceiling::Capacity => account.allocatable_bytes(),
        };
        if more_bytes > room_bytes {
            return Err(Refused::NoRoom);
        }
        self.accounts[index].replace(from, to);
        if ceiling == Ceiling::Limit {
            self.count_passes(index, self.waiters.len());
        }
        Ok(Decided::new())
    }

    /// Sets the two ceilings of an account, up or down.
    pub(crate) fn set_ceilings(
        &mut self,
        index: AccountIndex,
        capacity_bytes: u64,
        limit_bytes: u64,
    ) -> Decided {
        let account = &mut self.accounts[index];
        account.capacity_bytes = capacity_bytes;
        account.limit_bytes = limit_bytes.min(capacity_bytes);
        let mut decided =
            self.end_where(Outcome::NeverFits, |book, waiter| !book.could_ever_serve(&waiter.ask));
        decided.extend(self.serve());
        decided
    }

    /// Makes an account larger by `bytes` that are taken from the start.
    pub(crate) fn enlarge_taken(&mut self, index: AccountIndex, bytes: u64) {
        let account = &mut self.accounts[index];
        account.capacity_bytes = account.capacity_bytes.saturating_add(bytes);
        account.limit_bytes = account.limit_bytes.saturating_add(bytes);
        account.replace(Charge::NONE, Charge::reserved(bytes));
    }

    /// Ends the waits whose deadline has come.
    pub(crate) fn expire(&mut self, now: Instant) -> Decided {
        let is_over = |_: &Self, waiter: &Waiter| waiter.deadline.is_some_and(|deadline| deadline <= now);
        let mut decided = self.end_where(Outcome::TimedOut, is_over);
        if !decided.is_empty() {
            decided.extend(self.serve());
        }
        decided
    }

    /// Ends one wait. Nothing happens where its fate is decided already.
    pub(crate) fn cancel(&mut self, ticket: Ticket) -> Decided {
        let mut decided = self.end_where(Outcome::Cancelled, |_, waiter| waiter.ticket == ticket);
        if !decided.is_empty() {
            decided.extend(self.serve());
        }
        decided
    }

    /// Ends all waits, and refuses all later requests. What is given out can still be given back.
    pub(crate) fn shut_down(&mut self) -> Decided {
        self.is_shut_down = true;
        self.end_where(Outcome::ShutDown, |_, _| true)
    }

    /// How a wait ended, once: `None` while it goes on.
    pub(crate) fn take_outcome(&mut self, ticket: Ticket) -> Option<Outcome> {
        self.outcomes.remove(&ticket)
    }

    /// Whether a request can be taken up at all.
    fn check(&self, ask: &Ask) -> Result<(), Refused> {
        if self.is_shut_down {
            Err(Refused::ShutDown)
        } else if self.could_ever_serve(ask) {
            Ok(())
        } else {
            Err(Refused::NeverFits)
        }
    }

    fn could_ever_serve(&self, ask: &Ask) -> bool {
        ask.candidates.iter().any(|candidate| self.accounts[candidate.account].could_ever_promise(ask.bytes))
    }

    /// Whether `waiter` can be served from `index` at all: no space that is too small for it is held up by it.
    fn wants(&self, waiter: &Waiter, index: AccountIndex) -> bool {
        self.accounts[index].could_ever_promise(waiter.ask.bytes)
            && waiter.ask.candidates.iter().any(|candidate| candidate.account == index)
    }

    /// Where `ask` is served from: the lowest rank with room, the most room within it, the first among equals.
    fn best_place(&self, ask: &Ask, closed: &Closed) -> Option<Grant> {
        let mut best: Option<(u8, u64, Grant)> = None;
        for &Candidate { account, rank } in &ask.candidates {
            let from = &self.accounts[account];
            let (bytes, room) = (from.rounded(ask.bytes), from.reservable_bytes());
            // Nothing is always there, also in a space that is closed or over its limit.
            if bytes > 0 && (closed[account] || bytes > room) {
                continue;
            }
            if best.is_none_or(|(best_rank, best_room, _)| (rank, best_room) < (best_rank, room)) {
                best = Some((rank, room, Grant { account, bytes }));
            }
        }
        best.map(|(_, _, grant)| grant)
    }

    /// The accounts that waiters have closed, as a request sees them that comes after all of them.
    fn closed(&self) -> Closed {
        let mut closed = Closed::from_elem(false, self.accounts.len());
        for waiter in &self.waiters {
            self.close_for(waiter, &mut closed);
        }
        closed
    }

    fn close_for(&self, waiter: &Waiter, closed: &mut Closed) {
        if waiter.passes < self.passes_max {
            return;
        }
        for candidate in &waiter.ask.candidates {
            closed[candidate.account] |=
                self.accounts[candidate.account].could_ever_promise(waiter.ask.bytes);
        }
    }

    /// Hands out a grant to whoever stands at `position`: everyone before it has been passed.
    fn give(&mut self, grant: Grant, position: usize) {
        if grant.bytes == 0 {
            return;
        }
        self.accounts[grant.account].replace(Charge::NONE, Charge::reserved(grant.bytes));
        self.count_passes(grant.account, position);
    }

    fn count_passes(&mut self, account: AccountIndex, position: usize) {
        for index in 0..position {
            if self.wants(&self.waiters[index], account) {
                self.waiters[index].passes = self.waiters[index].passes.saturating_add(1);
            }
        }
    }

    /// Serves whoever can be served, in order.
    fn serve(&mut self) -> Decided {
        let mut decided = Decided::new();
        let mut closed = Closed::from_elem(false, self.accounts.len());
        let mut position = 0;
        while position < self.waiters.len() {
            if let Some(grant) = self.best_place(&self.waiters[position].ask, &closed) {
                self.give(grant, position);
                let waiter = self.waiters.remove(position);
                self.outcomes.insert(waiter.ticket, Outcome::Granted(grant));
                decided.push(waiter.ticket);
                // This grant may have been the last pass that somebody before could bear.
                for before in 0..position {
                    self.close_for(&self.waiters[before], &mut closed);
                }
            } else {
                self.close_for(&self.waiters[position], &mut closed);
                position += 1;
            }
        }
        decided
    }

    fn end_where(&mut self, outcome: Outcome, ends: impl Fn(&Self, &Waiter) -> bool) -> Decided {
        let mut decided = Decided::new();
        for position in (0..self.waiters.len()).rev() {
            if ends(self, &self.waiters[position]) {
                let ticket = self.waiters.remove(position).ticket;
                self.outcomes.insert(ticket, outcome);
                decided.push(ticket);
            }
        }
        decided
    }

    /// Whether everything holds that must hold between any two calls; in words what does not.
    #[cfg(test)]
    pub(crate) fn verify(&self) -> Result<(), String> {
        if !self.waiters.is_sorted_by_key(|waiter| waiter.ticket) {
            return Err("the queue is out of order".into());
        }
        let mut closed = Closed::from_elem(false, self.accounts.len());
        for waiter in &self.waiters {
            if let Some(grant) = self.best_place(&waiter.ask, &closed) {
                return Err(format!("{waiter:?} waits although {grant:?} is there"));
            }
            if !self.could_ever_serve(&waiter.ask) {
                return Err(format!("{waiter:?} waits for ever"));
            }
            if self.outcomes.contains_key(&waiter.ticket) {
                return Err(format!("{waiter:?} waits although its fate is decided"));
            }
            self.close_for(waiter, &mut closed);
        }
        Ok(())
    }
}
