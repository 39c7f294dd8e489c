export function Logo({ size = 20 }: { size?: number }) {
  return <svg class="logo" width={size} height={size} viewBox="0 0 32 32" aria-hidden="true" focusable="false">
    <rect width="32" height="32" rx="7" class="logo-ground" />
    <path class="logo-lines" d="M7 10.5h11.5a5.5 5.5 0 0 1 0 11H13M7 16h8.5M7 21.5h2" />
  </svg>;
}
