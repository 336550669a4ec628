/** Whether perf-gate is there to see the marks. */
export declare const active: boolean;

export interface Mark {
  /**
   * Opens a window in the calling thread's isolate. Windows do not nest.
   * @param id an integer from 1 to 2^27 - 1, yours to choose
   * @param scale an integer from 0 to 2^31 - 1, such as the number of iterations; 1 when left out
   * @throws Error when a window is open, RangeError when a number is out of range
   */
  begin(id: number, scale?: number): void;
  /**
   * Closes the open window.
   * @throws Error when none is open
   */
  end(): void;
}

/** Does nothing without perf-gate around the program. */
export declare const mark: Mark;

/**
 * The same as `mark`.
 * @throws Error with `require: true`, when nothing measures the program; it says what to do about it
 */
export declare function getMark(options?: { require?: boolean }): Mark;

/** `getMark({ require: true })`. */
export declare function requireMark(): Mark;
