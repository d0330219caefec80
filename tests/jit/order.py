"""Orders that the kernels' comments claim, looked for in machine code; the table in docs/architecture.md names them.

Each function returns what breaks an order, in words; nothing if it holds.
"""

from __future__ import annotations

import re

from tests.jit.listing import Instruction, Listing

ARRIVAL = "SYNCS.ARRIVE"
"""At an mbarrier, of this CTA or of another of its cluster."""
_FENCE = "FENCE.VIEW.ASYNC"
_BULK_STORE = "UTMASTG|UTMAREDG"
_WAVE_ENDS = "gsb0"
_OUTPUT = "F2FP", "STSM", "STS", "STG"


def is_release(instruction: Instruction) -> bool:
    """Whether it tells others that a place may be written again, or read: an arrival that expects no bytes."""
    return instruction.opcode.startswith(ARRIVAL) and ".A1T0" in instruction.opcode


def late_loads(listing: Listing, *, ahead: bool = False, keeps_some: bool = False) -> list[str]:
    """Loads from shared memory that an arrival which lets go of their place does not wait for.

    Of interest is what is multiplied, the scales that come with a stage, and what is copied to global memory, a staged
    output. A load is waited for by the first instruction that reads what it loads. A path from the load to the release
    of its own stage without such an instruction is an error. The stage is its own once the wave that was started behind
    the load is known to be complete: releases before that are of stages before. With ``ahead`` loads that come behind a
    wave are of the K block after it, and the first release is not yet its own. Behind the last one of a tile none is
    loaded, which is what the predicate says that such a load has: no path through the tile's output counts. With
    ``keeps_some`` promotion loads some scales of B's rows for the wave after, and a release ahead of the next wave's
    start or wait is that of its own.
    """
    found = []
    for place, copied in (*((i, False) for i in scale_loads(listing)), *((i, True) for i in _copying_loads(listing))):
        waves = _waves_started(listing, place, copied)
        is_ahead = ahead and waves == 1 and not _promotes_own_wave(listing, place)
        if is_ahead and not listing.instructions[place].guard:
            found.append(f"{listing.instructions[place].text} is loaded ahead whether there is a next K block or not")
        is_ahead = is_ahead or (keeps_some and _is_pair(listing, place) and _is_of_the_wave_after(listing, place))
        release = _release_before_use(listing, place, waves_started=waves, is_ahead=is_ahead)
        if release is not None:
            late = listing.instructions[release].text
            found.append(f"{listing.instructions[place].text} is not waited for by {late}")
    return found


def loads_of_stages_given_away(listing: Listing) -> list[str]:
    """Scales of B's rows that promotion loads behind the release of their stage: between that and them is neither a
    wave that is started nor one that is waited for. What it loads for the wave after is of another stage."""
    pairs, found = _loads_of_pairs(listing), set[int]()
    for place in (i for i, each in enumerate(listing.instructions) if is_release(each)):
        found |= pairs & set(listing.reached(place, _is_of_a_wave))
    found = {place for place in found if _promotes_own_wave(listing, place)}
    return [f"{listing.instructions[i].text} comes behind the release of its stage" for i in sorted(found)]


def unscaled_promotions(listing: Listing, pairs: int, kept: int) -> list[str]:
    """Waits for a wave behind which, up to the next wave, there are not all loads of pairs of scales of B's rows but of
    those that are kept.

    While another wave is in flight, its own that are kept may be loaded there, too, all or none. Behind the last of a
    chunk are some of the next chunk's first.
    """
    of_rows, found = _loads_of_pairs(listing), []
    for place in listing.where(r"WARPGROUP\.DEPBAR"):
        wait, behind = listing.instructions[place].text, of_rows & set(listing.reached(place, _is_of_a_wave))
        if wait.endswith("0x0"):
            behind, right = {i for i in behind if _promotes_own_wave(listing, i)}, {pairs - kept}
        else:
            right = {pairs - kept, pairs}
        if len(behind) not in right:
            found.append(f"{wait} has {len(behind)} loads of scales behind it, not {sorted(right)}")
    return found


def _loads_of_pairs(listing: Listing) -> set[int]:
    """Of the loads of scales those of B's rows: a thread's columns come in pairs."""
    return {place for place in scale_loads(listing) if _is_pair(listing, place)}


def _is_of_the_wave_after(listing: Listing, place: int) -> bool:
    """Whether promotion loads it for the wave after: it is not promoted with it, but hands its stage back behind it."""
    after = listing.reached(place, lambda each: is_release(each) or _is_of_a_wave(each))
    releases = any(is_release(listing.instructions[i]) for i in after)
    return releases and not _promotes_own_wave(listing, place)


def _is_pair(listing: Listing, place: int) -> bool:
    return ".64" in listing.instructions[place].opcode


def _is_of_a_wave(instruction: Instruction) -> bool:
    """Whether it starts a wave or waits for one."""
    return instruction.opcode.startswith(("QGMMA", "WARPGROUP.DEPBAR"))


def scale_loads(listing: Listing) -> list[int]:
    """The places of loads from shared memory of what is multiplied. Four words at a time are tables and sums alone."""
    return [
        i for i in listing.where(r"LDS(\.64)?\s") if any(re.match("FMUL|FFMA", user) for user in _users(listing, i))
    ]


def unbound_scales(listing: Listing) -> list[str]:
    """Loads of scales that no arrival's address is made of: nothing joins them to what is and'ed with zero."""
    places = scale_loads(listing)
    return [listing.instructions[i].text for i in places if not any(u.startswith("LOP3") for u in _users(listing, i))]


def unknown_opcodes(listing: Listing) -> set[str]:
    """Arrivals and loads that this module would not recognise as such."""
    # Of local memory too, which is a thread's own.
    known = re.compile(r"SYNCS\.ARRIVE\.TRANS64(\.RED)?(\.A1T0)?$|LDSM|LDS(\.64|\.128)?$|LDG|LDC|LDGDEPBAR|LDL")
    opcodes = {each.opcode for each in listing.instructions if each.opcode.startswith(("LD", "SYNCS.ARRIVE"))}
    return {opcode for opcode in opcodes if not known.match(opcode)}


def _copying_loads(listing: Listing) -> list[int]:
    return [i for i in listing.where(r"LDS\b") if any(user.startswith("STG") for user in _users(listing, i))]


def unfenced_staging(listing: Listing) -> list[str]:
    """Writes of staged outputs that an arrival hands over to the copy engine without a proxy fence between."""
    found = []
    for place in listing.where(r"STSM\b") or (listing.where(r"STS\.64") if listing.where(_BULK_STORE) else ()):
        # A barrier of the CTA ends the search: tables are written by such stores too, and handed over by it.
        after = listing.reached(place, lambda each: is_release(each) or each.opcode.startswith((_FENCE, "BAR")))
        if any(is_release(listing.instructions[i]) for i in after):
            found.append(f"{listing.instructions[place].text} is handed over before a fence")
    return found


def unread_slots(listing: Listing) -> list[str]:
    """Bulk stores whose slot an arrival hands back without waiting until they have read it."""
    found = []
    for place in listing.where(_BULK_STORE):
        for waited in ("UTMACMDFLUSH", "DEPBAR.LE SB0"):
            after = listing.reached(place, lambda each, w=waited: is_release(each) or each.text.startswith(w))
            if any(is_release(listing.instructions[i]) for i in after):
                found.append(f"{listing.instructions[place].text}: an arrival comes before {waited}")
    return found


def early_writes(listing: Listing) -> list[str]:
    """Writes to global memory that some path from the entry comes to without having waited for the grids ahead."""
    writes = re.compile(rf"STG|{_BULK_STORE}|RED|ATOMG")
    ends = re.compile(f"ACQBULK|STG|{_BULK_STORE}|RED|ATOMG")
    entry = listing.reached(listing.ENTRY, lambda each: ends.match(each.text) is not None)
    return [text for i in entry if writes.match(text := listing.instructions[i].text)]


def barriers_shown_too_early(listing: Listing) -> list[str]:
    """Barriers that are initialised when the cluster has already been told of them."""
    found = []
    for place in listing.where("UCGABAR_ARV"):
        after = listing.reached(place, lambda each: each.opcode.startswith("SYNCS.EXCH"))
        found += [text for i in after if (text := listing.instructions[i].text).startswith("SYNCS.EXCH")]
    return found


def arrivals_at_nobody(listing: Listing) -> list[str]:
    """Ends of a load thread at whose barriers others of the cluster may still arrive: since it let dependent grids go,
    after its last load, it has not looked at them. None where no others arrive."""
    if not listing.where(r"SYNCS\.ARRIVE\.TRANS64\.RED"):
        return []
    found = []
    for place in listing.where("PREEXIT"):
        after = listing.reached(place, lambda each: each.opcode.startswith(("SYNCS.PHASECHK", "EXIT")))
        found += [text for i in after if (text := listing.instructions[i].text).startswith("EXIT")]
    return found


def unjoined_sums(listing: Listing) -> list[str]:
    """Sums sent to another CTA on a path that has not waited until all of the cluster have initialised their barriers.

    Beside the wait, some NOPs apart, stands the one of a launch without clusters.
    """
    joins = [
        listing.instructions[i]
        for place in listing.where("UCGABAR_WAIT")
        for i in range(place, place + 6)
        if listing.instructions[i].opcode.startswith(("UCGABAR_WAIT", "BAR.SYNC"))
    ]
    entry = listing.reached(
        listing.ENTRY, lambda each: each.opcode.startswith("STAS") or any(each is join for join in joins)
    )
    return [text for i in entry if (text := listing.instructions[i].text).startswith("STAS")]


def _promotes_own_wave(listing: Listing, place: int) -> bool:
    """Whether sums are promoted with what was loaded before another whole wave has been started behind the load."""
    loaded = frozenset(listing.instructions[place].writes)
    waiting = [(after, loaded) for after in listing.followers(place)]
    seen = set(waiting)
    while waiting:
        here, held = waiting.pop()
        each = listing.instructions[here]
        if _WAVE_ENDS in each.text:
            continue
        if each.reads & held:
            if each.opcode.startswith("FFMA"):
                return True
            if re.match("FMUL|MOV", each.text):
                held |= each.writes
        elif not each.guard:
            held -= each.writes
        new = {(after, held) for after in listing.followers(here) if held} - seen
        seen |= new
        waiting += new
    return False


def _users(listing: Listing, place: int) -> set[str]:
    """The instructions that read what a load has loaded, or what that was copied to, as across a loop's back edge."""
    found, copied, copies = set[int](), [place], {place}
    while copied:
        here = copied.pop()
        for register in listing.instructions[here].writes:
            after = listing.reached(here, lambda each, own=register: own in each.writes and not each.guard)
            found |= {i for i in after if register in listing.instructions[i].reads}
        new = {i for i in found if listing.instructions[i].opcode == "MOV"} - copies
        copied += new
        copies |= new
    return {listing.instructions[i].text for i in found}


def _waves_started(listing: Listing, place: int, copied: bool) -> int | None:
    """How many waves of the load's K block have been started before it, whole: 0 or 1. None behind a complete wave:
    of scales of B's rows, which come in pairs, and outside of the main loop.

    Scales of A's rows are loaded ahead of their wave; the assembler moves them among its instructions.
    """
    if copied or _is_pair(listing, place):
        return None
    next_of_loop = re.compile(r"QGMMA|WARPGROUP")
    reached = listing.reached(place, lambda instruction: next_of_loop.match(instruction.text) is not None)
    met = [text for i in reached if next_of_loop.match(text := listing.instructions[i].text)]
    amid_a_wave = any(text.startswith("QGMMA") for text in met)
    behind_it = any("DEPBAR" in text for text in met)
    return 1 if behind_it and not amid_a_wave else 0


def _release_before_use(listing: Listing, place: int, *, waves_started: int | None, is_ahead: bool) -> int | None:
    """A release of the load's stage that some path comes to before anything reads what was loaded; if it is loaded a K
    block ahead, some path of the main loop, and the second release."""
    load = listing.instructions[place]
    # Waves that were started since, whether the load's own is complete, and releases until that of its own stage.
    start = waves_started or 0, waves_started is None, int(is_ahead)
    waiting = [(follower, *start) for follower in listing.followers(place)]
    seen = set(waiting)
    while waiting:
        here, waves, done, others = waiting.pop()
        instruction = listing.instructions[here]
        if instruction.reads & load.writes:
            continue
        if is_ahead and instruction.opcode.startswith(_OUTPUT):
            continue
        if done and is_release(instruction):
            if others == 0:
                return here
            others -= 1
        if load.writes & instruction.writes and not instruction.guard:
            continue
        if instruction.opcode.startswith("QGMMA") and _WAVE_ENDS in instruction.text:
            waves = min(waves + 1, 8)
        if running := re.match(r"WARPGROUP\.DEPBAR\.LE gsb0, 0x(\d)", instruction.text):
            done = done or waves > int(running[1])
        for follower in listing.followers(here):
            if (state := (follower, waves, done, others)) not in seen:
                seen.add(state)
                waiting.append(state)
    return None
