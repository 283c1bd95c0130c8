//! Many threads at once: what they hold is theirs alone, and it may be given back anywhere.

use std::sync::{Arc, mpsc};
use std::thread;

use headwater::{AllocError, Allocator, Block, Request};

use super::accounts::reconciles;
use super::ground::{AllocatorGround, ends, fill, give_back, holds, is_empty};
use crate::check::{Check, ensure, joined, same};

const THREADS: u8 = 8;

fn what_a_thread_holds_is_its_own(ground: &AllocatorGround<'_>) -> Check {
    let allocator = ground.allocator()?;
    let work = |number: u8| -> Check {
        let stream = ground.stream()?;
        for round in 0..10 {
            let sizes = [100, 5000, 70_000, 1 << 20].map(|bytes| bytes + u64::from(number) * 512 + round);
            let held = sizes.map(|bytes| ground.block(&allocator, bytes, stream.id()));
            for block in held.iter().flatten() {
                fill(&allocator, block.ptr(), block.bytes(), number, stream.id())?;
            }
            for block in held {
                let block = block?;
                holds(&allocator, block.ptr(), block.bytes(), number, stream.id())?;
                ends(block)?;
            }
        }
        Ok(())
    };
    let work = &work;
    thread::scope(|scope| {
        let threads: Vec<_> = (1..=THREADS).map(|number| scope.spawn(move || work(number))).collect();
        threads.into_iter().try_for_each(joined)
    })?;
    reconciles(&allocator)?;
    is_empty(&allocator)
}

fn a_block_is_given_back_by_another_thread(ground: &AllocatorGround<'_>) -> Check {
    let allocator = ground.allocator()?;
    let stream = ground.stream()?;
    let (send, receive) = mpsc::sync_channel::<Block>(16);
    thread::scope(|scope| {
        let consumer = scope.spawn(move || -> Check<u64> {
            let mut blocks = 0;
            while let Ok(block) = receive.recv() {
                ends(block)?;
                blocks += 1;
            }
            Ok(blocks)
        });
        for round in 0..200 {
            let block = ground.block(&allocator, 512 + round * 977, stream.id())?;
            // A consumer that has ended tells why itself.
            let _ = send.send(block);
        }
        drop(send);
        same("blocks that arrived", 200, joined(consumer)?)
    })?;
    reconciles(&allocator)?;
    is_empty(&allocator)
}

fn what_a_thread_held_outlives_it(ground: &AllocatorGround<'_>) -> Check {
    let allocator = ground.allocator()?;
    let stream = ground.stream()?;
    let make = || -> Check<Block> {
        let block = ground.block(&allocator, 4096, stream.id())?;
        fill(&allocator, block.ptr(), 4096, 0x77, stream.id())?;
        // Left in whatever cache the ending thread has.
        ends(ground.block(&allocator, 8192, stream.id())?)?;
        Ok(block)
    };
    let block = thread::scope(|scope| joined(scope.spawn(make)))?;
    holds(&allocator, block.ptr(), 4096, 0x77, stream.id())?;
    ends(block)?;
    is_empty(&allocator)
}

fn of_two_threads_that_give_back_the_same_block_one_is_refused(ground: &AllocatorGround<'_>) -> Check {
    let allocator = ground.allocator()?;
    let stream = ground.stream()?;
    fn try_once(allocator: &Arc<dyn Allocator>, ptr: headwater_driver::DevicePtr) -> Check<bool> {
        match give_back(allocator, ptr) {
            Ok(()) => Ok(true),
            Err(AllocError::AlreadyGivenBack { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
    for _ in 0..50 {
        let ptr = allocator.allocate(Request::new(4096, stream.id()))?;
        let (one, two) = thread::scope(|scope| {
            let one = scope.spawn(|| try_once(&allocator, ptr));
            let two = scope.spawn(|| try_once(&allocator, ptr));
            (joined(one), joined(two))
        });
        ensure(one? != two?, "exactly one of the two gives it back")?;
    }
    reconciles(&allocator)?;
    is_empty(&allocator)
}

fn the_cache_can_be_emptied_at_any_time(ground: &AllocatorGround<'_>) -> Check {
    let allocator = ground.allocator()?;
    let churn = || -> Check {
        let stream = ground.stream()?;
        for round in 0..100 {
            ends(ground.block(&allocator, 1 + round * 4099, stream.id())?)?;
        }
        Ok(())
    };
    let empty = || -> Check {
        for _ in 0..50 {
            allocator.empty_cache()?;
            reconciles(&allocator)?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let threads = [scope.spawn(churn), scope.spawn(churn), scope.spawn(empty)];
        threads.into_iter().try_for_each(joined)
    })?;
    is_empty(&allocator)
}

super::list_cases!(threads:
    what_a_thread_holds_is_its_own,
    a_block_is_given_back_by_another_thread,
    what_a_thread_held_outlives_it,
    of_two_threads_that_give_back_the_same_block_one_is_refused,
    the_cache_can_be_emptied_at_any_time,
);
